"""The guest's pictures: its emulated screen, and which cards are displays beside it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from launcher.vm.cards.claims import Claim, EntryKind
from launcher.vm.cards.manifest import GPU, Display
from launcher.vm.devices import Devices
from launcher.vm.guest import Guest
from launcher.vm.guest_pci.addresses import SCREEN
from pci.address import PCIAddress
from program.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """An emulated video device. `has_vram`: it is told how much memory it has. `address` is None where libvirt places
    it, and for what is no PCI device."""

    model: str
    has_vram: bool
    address: PCIAddress | None


def screen_of(devices: Devices, guest: Guest) -> Screen | None:
    """Return the guest's emulated screen; None without graphics."""
    if not devices.autoattachGraphicsDevice:
        return None
    if devices.video is not None:
        model, has_vram = devices.video.type, True
    elif guest.architecture == "arm64":
        model, has_vram = "virtio", False
    elif guest.is_efi:
        model, has_vram = "bochs", False  # what EFI has a driver for, without the registers of a VGA
    else:
        model, has_vram = "vga", True
    # ramfb is no PCI device; and arm64 has neither VGA nor, behind it, firmware that looks for one.
    has_address = guest.architecture == "amd64" and model != "ramfb"
    return Screen(model=model, has_vram=has_vram, address=SCREEN if has_address else None)


def displays_of(devices: Devices, claims: Iterable[Claim]) -> Mapping[str, bool]:
    """Return which gpus are displays, by the alias of their claim: True with ramfb, which firmware and boot loader draw
    on.

    As in KubeVirt: if no gpu says anything about a display, the first mediated device is one, with ramfb. Otherwise
    each gpu that says so: a mediated device with `display: {}`, a PCI device only with `display: {enabled: true}`.
    Without graphics KubeVirt makes a display too, and libvirt refuses it; here no gpu is one by default, and a display
    that the manifest asks for is a UserError. QEMU has one ramfb, which may be the video device.
    """
    gpus = {gpu.name: gpu for gpu in devices.gpus}
    has_ramfb = devices.video is not None and devices.video.type == "ramfb"
    of_gpus = [claim for claim in claims if claim.entry.kind is EntryKind.GPU]
    if not any(map(_display, devices.gpus)):
        first = next((claim for claim in of_gpus if isinstance(claim.device, UUID)), None)
        if first is None or not devices.autoattachGraphicsDevice:
            return {}
        return {first.alias: not has_ramfb}
    displays: dict[str, bool] = {}
    ramfb = ["video"] if has_ramfb else []
    for claim in of_gpus:
        options = _display(gpus[claim.entry.name])
        if options is None or not (isinstance(claim.device, UUID) if options.enabled is None else options.enabled):
            continue
        if not devices.autoattachGraphicsDevice:
            raise UserError(
                claim.entry,
                "virtualGPUOptions.display needs graphics, and autoattachGraphicsDevice is false",
                "expected display.enabled: false, or graphics",
            )
        displays[claim.alias] = options.ramFB.enabled
        if options.ramFB.enabled:
            ramfb.append(str(claim.entry))
    if len(ramfb) > 1:
        raise UserError(
            " and ".join(ramfb),
            "would each be the ramfb, and a guest has one",
            "expected virtualGPUOptions.display.ramFB.enabled: false on all others",
        )
    return displays


def _display(gpu: GPU) -> Display | None:
    return gpu.virtualGPUOptions.display if gpu.virtualGPUOptions is not None else None
