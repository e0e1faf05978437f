"""<controller>: the root ports that seats are made of, and what devices are plugged into."""

from lxml import etree
from lxml.etree import _Element as Element

from launcher.addresses import Seat
from launcher.elements import iothreads
from launcher.elements.address import guest_address
from launcher.elements.cpu import vcpus
from launcher.elements.element import E
from launcher.elements.peripherals import inputs
from launcher.elements.virtio import virtio_driver, virtio_model
from launcher.manifest.spec import Spec, VirtualMachineInstance


def root_port(seat: Seat) -> Element:
    """A seat's root port. Chassis and port number are the physical slot that a guest shows, so they are fixed too."""
    port = seat.port
    return E.controller(
        E.target(chassis=str(seat.bus), port=f"0x{port.slot << 3 | port.function:x}"),
        # On even with one port in the slot: a second card must not change the first one's port.
        guest_address(port, multifunction=port.function == 0),
        type="pci",
        index=str(seat.bus),
        model="pcie-root-port",
    )


def controllers(vmi: VirtualMachineInstance, *, usb: bool) -> list[Element]:
    """What devices of other buses than PCI are plugged into. The agent's channel is on virtio-serial.

    `usb`: whether USB devices of the host's are passed on.
    """
    domain = vmi.spec.domain
    return [
        # Said also where it is none: libvirt adds one by itself.
        E.controller(type="usb", index="0", model="qemu-xhci" if usb or _has_usb(vmi.spec) else "none"),
        E.controller(*virtio_driver(domain), type="virtio-serial", index="0", model=virtio_model(domain)),
        *scsi(vmi),
    ]


def scsi(vmi: VirtualMachineInstance) -> list[Element]:
    """The one controller of all SCSI disks, where there are any: nothing is hotplugged, so no other needs it."""
    if not any(disk.bus(vmi.spec.architecture) == "scsi" for disk in vmi.spec.disks):
        return []
    domain = vmi.spec.domain
    element = E.controller(*virtio_driver(domain), type="scsi", index="0", model=virtio_model(domain))
    if threads := iothreads.of_scsi_controller(vmi):
        drivers = element.findall("driver") or [etree.SubElement(element, "driver")]
        drivers[0].set("queues", str(vcpus(domain)))
        iothreads.serve(drivers[0], threads)
    return [element]


def _has_usb(spec: Spec) -> bool:
    """Whether anything is on USB; on arm64 it is there in any case, as KubeVirt has it."""
    return (
        spec.architecture == "arm64"
        or any(element.get("bus") == "usb" for element in inputs(spec))
        or any(disk.bus(spec.architecture) == "usb" for disk in spec.disks)
    )
