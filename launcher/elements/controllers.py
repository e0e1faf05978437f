"""<controller>: what devices of other buses than PCI are plugged into."""

from lxml import etree
from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.devices.devices import GuestDevices
from launcher.elements import placement
from launcher.elements.virtio import virtio_driver, virtio_model
from launcher.guest import Guest


def controllers(guest: Guest, devices: GuestDevices) -> list[Element]:
    """Return what devices of other buses than PCI are plugged into. The agent's channel is on virtio-serial."""
    return [
        # Said also where it is none: libvirt adds one by itself.
        E.controller(type="usb", index="0", model="qemu-xhci" if devices.has_usb else "none"),
        E.controller(*virtio_driver(guest), type="virtio-serial", index="0", model=virtio_model(guest)),
        *_scsi(guest, devices),
    ]


def _scsi(guest: Guest, devices: GuestDevices) -> list[Element]:
    """Return the one controller of all SCSI disks, if there are any; nothing is hotplugged that would need it."""
    if all(disk.bus != "scsi" for disk in devices.disks):
        return []
    element = E.controller(*virtio_driver(guest), type="scsi", index="0", model=virtio_model(guest))
    if threads := devices.iothreads.of_scsi_controller:
        drivers = element.findall("driver") or [etree.SubElement(element, "driver")]
        drivers[0].set("queues", str(guest.vcpus))
        placement.serve(drivers[0], threads)
    return [element]
