"""spec.domain.devices: the small devices."""

from typing import Annotated, Literal

from launcher.fields.objects import Object, Refused
from launcher.fields.scalars import AliasName


class Input(Object):
    name: AliasName
    type: Literal["tablet"] = "tablet"
    bus: Literal["usb", "virtio"] = "usb"


class I6300ESBWatchdog(Object):
    action: Literal["poweroff", "reset", "shutdown"] = "reset"


class Watchdog(Object):
    name: AliasName
    i6300esb: I6300ESBWatchdog = I6300ESBWatchdog.model_construct()
    diag288: Annotated[None, Refused("it is a device of s390x", "write `i6300esb: {}` instead")] = None


class Rng(Object):
    pass


class Sound(Object):
    name: AliasName
    model: Literal["ich9", "ac97"] = "ich9"


class PanicDevice(Object):
    model: Literal["hyperv", "isa", "pvpanic"] | None = None

    def of(self, architecture: str) -> str:
        """Return the model, or libvirt's default model on this architecture."""
        return self.model or ("isa" if architecture == "amd64" else "pvpanic")


class TPM(Object):
    enabled: bool = True
    persistent: bool = False


class Video(Object):
    type: Literal["vga", "bochs", "cirrus", "ramfb", "virtio"]
