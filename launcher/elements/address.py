"""<address type='pci'>: a PCI address in the guest, or in a hostdev's source."""

from lxml.builder import E
from lxml.etree import _Element as Element

from pci.address import PCIAddress


def pci_address(address: PCIAddress, **attributes: str) -> Element:
    """Return <address> with the four numbers in hexadecimal, as libvirt prints them back."""
    numbers = {
        "domain": f"0x{address.domain:04x}",
        "bus": f"0x{address.bus:02x}",
        "slot": f"0x{address.slot:02x}",
        "function": f"0x{address.function:x}",
    }
    return E.address(**attributes, **numbers)


def guest_address(address: PCIAddress, *, multifunction: bool = False) -> Element:
    element = pci_address(address, type="pci")
    if multifunction:
        element.set("multifunction", "on")
    return element
