"""spec.domain.devices: the lists of disks, interfaces and host devices, and all the small devices."""

from typing import Annotated, Literal

from launcher.manifest.disks import Disk
from launcher.manifest.hostdevices import GPU, HostDevice
from launcher.manifest.interfaces import Interface
from launcher.manifest.scalars import AliasName, first_twice
from launcher.model import Ignored, Refused, model


@model
class Input:
    name: AliasName
    type: Literal["tablet", "keyboard"]
    bus: Literal["usb", "virtio"] | None = None


@model
class I6300ESBWatchdog:
    action: Literal["poweroff", "reset", "shutdown"] = "reset"


@model
class Watchdog:
    name: AliasName
    i6300esb: I6300ESBWatchdog | None = None
    diag288: Annotated[None, Refused("it is a device of s390x; write `i6300esb: {}` instead")] = None


@model
class Rng:
    pass


@model
class Sound:
    name: AliasName
    model: Literal["ich9", "ac97"] = "ich9"


@model
class PanicDevice:
    model: Literal["hyperv", "isa", "pvpanic"] | None = None


@model
class TPM:
    enabled: bool = True
    persistent: bool = False


@model
class Video:
    type: Literal["vga", "bochs", "virtio", "ramfb", "none", "cirrus", "vmvga", "qxl"]


@model
class Devices:
    gpus: tuple[GPU, ...] = ()
    hostDevices: tuple[HostDevice, ...] = ()
    disks: tuple[Disk, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    inputs: tuple[Input, ...] = ()
    watchdog: Watchdog | None = None
    rng: Rng | None = None
    sound: Sound | None = None
    panicDevices: tuple[PanicDevice, ...] = ()
    tpm: TPM | None = None
    video: Video | None = None
    autoattachGraphicsDevice: bool = True
    autoattachInputDevice: bool = False
    autoattachMemBalloon: bool = True
    autoattachPodInterface: bool = True
    autoattachSerialConsole: bool = True
    autoattachVSOCK: bool = False
    logSerialConsole: bool | None = None
    blockMultiQueue: bool = False
    networkInterfaceMultiqueue: bool = False
    useVirtioTransitional: bool = False
    disableHotplug: Annotated[bool, Ignored("there is no hotplug, said or not")] = False
    clientPassthrough: Annotated[
        None, Refused("USB redirection is served by KubeVirt's API, which is not there; leave it out")
    ] = None
    downwardMetrics: Annotated[
        None, Refused("the host's metrics come from KubeVirt's handler, which is not there; leave it out")
    ] = None
    filesystems: Annotated[None, Refused("virtiofs needs a virtiofsd beside the launcher; use a disk instead")] = None

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for device in (*self.gpus, *self.hostDevices):
            if device.name in seen:
                raise ValueError(f"two entries of gpus and hostDevices are called {device.name!r}; rename one of them")
            seen.add(device.name)
        if name := first_twice(disk.name for disk in self.disks):
            raise ValueError(f"two devices would have the alias {name!r} in the domain; rename one of them")
        bootable: tuple[Disk | Interface, ...] = (*self.disks, *self.interfaces)
        if order := first_twice(device.bootOrder for device in bootable if device.bootOrder is not None):
            raise ValueError(f"two of disks and interfaces have bootOrder {order}; expected each once")
