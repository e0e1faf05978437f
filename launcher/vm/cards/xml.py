"""<hostdev>: a host's PCI function, mediated or USB device in the guest; <qemu:override>: properties of QEMU's that
libvirt has no element for.
"""

from collections.abc import Iterator, Mapping
from uuid import UUID

from lxml.builder import E, ElementMaker
from lxml.etree import _Element as Element

from launcher.vm.cards.claims import Claim
from launcher.vm.cards.peer_to_peer import Property
from launcher.vm.cards.roms import ROM
from launcher.vm.guest_pci.addresses import HostDev, Seat
from launcher.vm.xml import guest_address, pci_address
from pci.resource import USBAddress

#: The name by which libvirt is given /dev/iommu (virDomainFDAssociate).
IOMMUFD = "iommufd"


def hostdevs(
    seats: tuple[Seat, ...], displays: Mapping[str, bool], roms: Mapping[str, ROM | None], usb: tuple[Claim, ...]
) -> list[Element]:
    """Return the seats' devices in their order, then the USB devices. `displays` and `roms` are by alias."""
    seated = [device for seat in seats for device in seat.hostdevs]
    return [
        *(_seated(device, displays.get(device.alias or ""), roms) for device in seated),
        *(_usb(claim) for claim in usb),
    ]


def iommufd(seats: tuple[Seat, ...]) -> list[Element]:
    """Return the element by which libvirt takes IOMMUFD for all PCI functions: it names the descriptor that libvirt is
    given."""
    functions = [device for seat in seats for device in seat.hostdevs if not isinstance(device.source, UUID)]
    return [E.iommufd(enabled="yes", fdgroup=IOMMUFD)] if functions else []


def _seated(device: HostDev, has_ramfb: bool | None, roms: Mapping[str, ROM | None]) -> Element:
    """Return a device on a seat. managed='no': the plugin binds it to vfio before the pod starts, and the pod may
    not."""
    attributes = {} if has_ramfb is None else {"display": "on", **({"ramfb": "on"} if has_ramfb else {})}
    if isinstance(device.source, UUID):
        source = E.source(E.address(uuid=str(device.source)))
        element = E.hostdev(source, mode="subsystem", type="mdev", model="vfio-pci", **attributes)
    else:
        source = E.source(pci_address(device.source))
        element = E.hostdev(source, mode="subsystem", type="pci", managed="no", **attributes)
    if device.alias is not None:
        element.append(E.alias(name=device.alias))
    if device.alias is not None and device.alias in roms:
        rom = roms[device.alias]
        element.append(E.rom(bar="off") if rom is None else E.rom(file=rom.file))
    element.append(guest_address(device.address, multifunction=device.multifunction))
    return element


def _usb(claim: Claim) -> Element:
    device = claim.device
    assert isinstance(device, USBAddress), "the launcher sorts them by kind"
    source = E.source(E.address(bus=str(device.bus), device=str(device.device)))
    return E.hostdev(source, E.alias(name=claim.alias), mode="subsystem", type="usb")


#: Libvirt's schema domain.rng, qemuoverride; since libvirt 8.2.
_NAMESPACE = "http://libvirt.org/schemas/domain/qemu/1.0"
_QEMU = ElementMaker(namespace=_NAMESPACE, nsmap={"qemu": _NAMESPACE})


def override(properties: Mapping[str, tuple[Property, ...]]) -> Iterator[Element]:
    """Yield the element, if any device has a property. They are by the device's alias."""
    devices = [
        _QEMU.device(
            _QEMU.frontend(*(_QEMU.property(name=each.name, type=each.type, value=each.value) for each in its)),
            alias=alias,
        )
        for alias, its in properties.items()
    ]
    if devices:
        yield _QEMU.override(*devices)
