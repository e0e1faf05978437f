"""<controller>: the bridges that seats are behind, and what devices are plugged into."""

from lxml import etree
from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.devices.devices import GuestDevices
from launcher.elements import iothreads
from launcher.elements.address import guest_address
from launcher.elements.virtio import virtio_driver, virtio_model
from launcher.guest import Guest
from launcher.guest_pci.addresses import Bridge, Layout
from launcher.guest_pci.bars import Hole

#: Of these there may be several to a slot.
_PACKED = ("pcie-expander-bus", "pcie-root-port")


def root_complex(hole: Hole | None) -> list[Element]:
    """Return bus 0, if it has to be said how large its 64-bit hole is."""
    if hole is None:
        return []
    size = E.pcihole64(str(hole.size >> 10), unit="KiB")
    return [E.controller(size, type="pci", index="0", model="pcie-root")]


def bridge(bridge: Bridge) -> Element:
    """Return a bridge of the layout. Chassis and port number are the slot that a guest shows: they are fixed too."""
    element = E.controller(type="pci", index=str(bridge.index), model=bridge.model)
    if bridge.bus_number is not None:
        target = E.target(busNr=str(bridge.bus_number))
        if bridge.cell is not None:
            target.append(E.node(str(bridge.cell)))
        element.append(target)
    elif bridge.chassis is not None:
        element.append(E.target(chassis=str(bridge.chassis), port=f"0x{bridge.port:x}", **_hotplug(bridge)))
    # On even with one bridge in the slot: a second card must not change the first one's.
    element.append(guest_address(bridge.address, multifunction=bridge.model in _PACKED and not bridge.address.function))
    return element


def _hotplug(bridge: Bridge) -> dict[str, str]:
    """Return hotplug='off' below an expander.

    OVMF keeps a window of I/O ports for each port with hotplug, and has ten in all. It takes them back where they are
    too few, but not with a second root bus: then no device of the guest's has addresses.
    """
    return {"hotplug": "off"} if bridge.address.bus else {}


def controllers(guest: Guest, devices: GuestDevices) -> list[Element]:
    """Return what devices of other buses than PCI are plugged into. The agent's channel is on virtio-serial."""
    return [
        # Said also where it is none: libvirt adds one by itself.
        E.controller(type="usb", index="0", model="qemu-xhci" if devices.has_usb else "none"),
        E.controller(*virtio_driver(guest), type="virtio-serial", index="0", model=virtio_model(guest)),
        *_scsi(guest, devices),
    ]


def placeholders(guest: Guest, layout: Layout) -> list[Element]:
    """Return an idle controller for each free seat.

    Into an empty port libvirt would put whatever comes first and has no address: also a bridge to old PCI, with one
    more bus, which would move the cards behind it. It takes no notice there of a port's hotplug='off'.
    """
    return [
        # Not virtio_model's: a transitional device is of old PCI, and no port's.
        E.controller(
            *virtio_driver(guest),
            guest_address(address),
            type="virtio-serial",
            index=str(number),
            model="virtio-non-transitional",
        )
        for number, address in enumerate(layout.free, start=1)
    ]


def _scsi(guest: Guest, devices: GuestDevices) -> list[Element]:
    """Return the one controller of all SCSI disks, if there are any; nothing is hotplugged that would need it."""
    if all(disk.bus != "scsi" for disk in devices.disks):
        return []
    element = E.controller(*virtio_driver(guest), type="scsi", index="0", model=virtio_model(guest))
    if threads := devices.iothreads.of_scsi_controller:
        drivers = element.findall("driver") or [etree.SubElement(element, "driver")]
        drivers[0].set("queues", str(guest.vcpus))
        iothreads.serve(drivers[0], threads)
    return [element]
