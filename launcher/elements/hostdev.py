"""<hostdev>: a host's PCI function or mediated device in the guest."""

from uuid import UUID

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.addresses import HostDev
from launcher.elements.address import guest_address, pci_address


def hostdev(device: HostDev) -> Element:
    """managed='no' for PCI: binding to vfio is done before the pod starts, and a pod may not write to sysfs."""
    if isinstance(device.source, UUID):
        source = E.source(E.address(uuid=str(device.source)))
        element = E.hostdev(source, mode="subsystem", type="mdev", model="vfio-pci")
    else:
        element = E.hostdev(E.source(pci_address(device.source)), mode="subsystem", type="pci", managed="no")
    if device.alias is not None:
        element.append(E.alias(name=device.alias))
    element.append(guest_address(device.address, multifunction=device.multifunction))
    return element
