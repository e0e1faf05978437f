"""The guest's inputs: those of the manifest, and those that a screen needs."""

from dataclasses import dataclass
from typing import Literal

from launcher.vm.devices import Devices
from launcher.vm.guest import Architecture
from launcher.vm.peripherals.manifest import Input


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestInput:
    """An input. `name` is the manifest's, None for an input that the manifest does not ask for."""

    type: Literal["tablet", "keyboard"]
    bus: Literal["usb", "virtio"]
    name: str | None = None


def guest_inputs(devices: Devices, architecture: Architecture) -> tuple[GuestInput, ...]:
    """Return the tablets; on arm64, whose machine has no PS/2, also the tablet and keyboard that a screen needs."""
    tablets = devices.inputs
    if not tablets and devices.autoattachInputDevice:
        tablets = (Input(name="default-0"),)
    inputs = [GuestInput(type=tablet.type, bus=tablet.bus, name=tablet.name) for tablet in tablets]
    if architecture == "arm64" and devices.autoattachGraphicsDevice:
        if not tablets:
            inputs.append(GuestInput(type="tablet", bus="usb"))
        inputs.append(GuestInput(type="keyboard", bus="usb"))
    return tuple(inputs)
