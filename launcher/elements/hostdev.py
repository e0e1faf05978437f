"""<hostdev>: a host's PCI function, mediated or USB device in the guest; and which of them is a display."""

from collections.abc import Iterable, Mapping
from uuid import UUID

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.claims import Claim, EntryKind
from launcher.elements.address import guest_address, pci_address
from launcher.guest_pci.addresses import HostDev, Seat
from launcher.manifest.devices import Devices
from launcher.manifest.hostdevices import GPU, Display
from pci.resource import USBAddress
from program.errors import UserError

_Attributes = Mapping[str, str]


def hostdevs(devices: Devices, seats: tuple[Seat, ...], usb: tuple[Claim, ...]) -> list[Element]:
    """Return the seats' devices in their order, then the USB devices."""
    seated = [device for seat in seats for device in seat.hostdevs]
    displays = _displays(devices, [device.claim for device in seated if device.claim is not None])
    return [
        *(_seated(device, displays.get(device.alias or "", {})) for device in seated),
        *(_usb(claim) for claim in usb),
    ]


def _seated(device: HostDev, display: _Attributes) -> Element:
    """Return a device on a seat; managed='no', since it is bound to vfio before the pod starts, which may not do it."""
    if isinstance(device.source, UUID):
        source = E.source(E.address(uuid=str(device.source)))
        element = E.hostdev(source, mode="subsystem", type="mdev", model="vfio-pci", **display)
    else:
        element = E.hostdev(E.source(pci_address(device.source)), mode="subsystem", type="pci", managed="no", **display)
    if device.alias is not None:
        element.append(E.alias(name=device.alias))
    element.append(guest_address(device.address, multifunction=device.multifunction))
    return element


def _usb(claim: Claim) -> Element:
    device = claim.device
    assert isinstance(device, USBAddress), "the launcher sorts them by kind"
    source = E.source(E.address(bus=str(device.bus), device=str(device.device)))
    return E.hostdev(source, E.alias(name=claim.alias), mode="subsystem", type="usb")


def _displays(devices: Devices, claims: Iterable[Claim]) -> Mapping[str, _Attributes]:
    """Return display and ramfb of the gpus that have a display, by alias.

    As KubeVirt has it: where no gpu says anything about a display, the first mediated device has one, with ramfb (what
    firmware and boot loader draw on). Otherwise each that says so: a mediated device with `display: {}`, a PCI device
    with `display: {enabled: true}` alone. KubeVirt makes one also without graphics, and libvirt refuses it; here the
    first goes without, and one that is asked for is refused. QEMU has one ramfb, also where the video device is one.
    """
    gpus = {gpu.name: gpu for gpu in devices.gpus}
    ramfb = ["video"] if devices.video is not None and devices.video.type == "ramfb" else []
    by_default = not any(_display(gpu) for gpu in devices.gpus)
    displays: dict[str, _Attributes] = {}
    for claim in claims:
        if claim.entry.kind is not EntryKind.GPU:
            continue
        display, mediated = _display(gpus[claim.entry.name]), isinstance(claim.device, UUID)
        if by_default:
            if mediated and not displays and devices.autoattachGraphicsDevice:
                displays[claim.alias] = {"display": "on"} if ramfb else {"display": "on", "ramfb": "on"}
            continue
        if display is None or not (mediated if display.enabled is None else display.enabled):
            continue
        if not devices.autoattachGraphicsDevice:
            raise UserError(
                claim.entry,
                "virtualGPUOptions.display needs graphics, and autoattachGraphicsDevice is false",
                "expected display.enabled: false, or graphics",
            )
        displays[claim.alias] = {"display": "on"}
        if display.ramFB.enabled:
            displays[claim.alias] = {"display": "on", "ramfb": "on"}
            ramfb.append(str(claim.entry))
    if not by_default and len(ramfb) > 1:
        raise UserError(
            " and ".join(ramfb),
            "would each be the ramfb, and a guest has one",
            "expected virtualGPUOptions.display.ramFB.enabled: false on all others",
        )
    return displays


def _display(gpu: GPU) -> Display | None:
    return gpu.virtualGPUOptions.display if gpu.virtualGPUOptions is not None else None
