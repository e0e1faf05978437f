"""<controller type='pci'>: bus 0 and its 64-bit hole, the bridges above seats, and the placeholders of free seats."""

from lxml.builder import E, ElementMaker
from lxml.etree import _Element as Element

from launcher.vm.guest import Guest
from launcher.vm.guest_pci.addresses import Layout, PCIBridge
from launcher.vm.guest_pci.bars import DEFAULT_BITS, Hole, ovmf_window
from launcher.vm.xml import guest_address, virtio_driver

#: Of these there may be several to a slot.
_PACKED = ("pcie-expander-bus", "pcie-root-port")
#: Libvirt's schema domain.rng, qemucmdline.
_NAMESPACE = "http://libvirt.org/schemas/domain/qemu/1.0"
_QEMU = ElementMaker(namespace=_NAMESPACE, nsmap={"qemu": _NAMESPACE})


def root_complex(hole: Hole | None) -> list[Element]:
    """Return bus 0 if the domain has to name the size of its 64-bit hole."""
    if hole is None:
        return []
    size = E.pcihole64(str(hole.size >> 10), unit="KiB")
    return [E.controller(size, type="pci", index="0", model="pcie-root")]


def maxphysaddr(hole: Hole | None, mode: str | None) -> list[Element]:
    """Return the number of bits of the guest's addresses, if its hole needs more of them than a CPU of this mode
    has."""
    # QEMU's host-passthrough has as many as the host in any case.
    if hole is None or hole.address_bits <= DEFAULT_BITS or mode == "host-passthrough":
        return []
    return [E.maxphysaddr(mode="passthrough")]


def command_line(guest: Guest, hole: Hole | None) -> list[Element]:
    """Return <qemu:commandline> with EFI's window for 64-bit BARs, if the default is too small.

    Libvirt has <sysinfo type='fwcfg'> for it, and keeps the names that begin with opt/ovmf/ to itself.
    """
    window = ovmf_window(hole) if hole is not None and guest.is_efi else None
    if window is None:
        return []
    arguments = ("-fw_cfg", f"name=opt/ovmf/X-PciMmio64Mb,string={window}")
    return [_QEMU.commandline(*(_QEMU.arg(value=argument) for argument in arguments))]


def bridge(bridge: PCIBridge) -> Element:
    """Return a bridge of the layout. Chassis and port number are the slot that a guest shows: they are fixed too."""
    element = E.controller(type="pci", index=str(bridge.index), model=bridge.model)
    if bridge.bus_number is not None:
        target = E.target(busNr=str(bridge.bus_number))
        if bridge.cell is not None:
            target.append(E.node(str(bridge.cell)))
        element.append(target)
    elif bridge.chassis is not None:
        # Off below an expander: OVMF keeps a window of I/O ports for each port with hotplug, and has ten in all. It
        # takes them back if they are too few, but not with a second root bus: then no device has addresses.
        hotplug = {"hotplug": "off"} if bridge.address.bus else {}
        element.append(E.target(chassis=str(bridge.chassis), port=f"0x{bridge.port:x}", **hotplug))
    # On even with one bridge in the slot: a second card must not change the first one's.
    element.append(guest_address(bridge.address, multifunction=bridge.model in _PACKED and not bridge.address.function))
    return element


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
