"""Shared by elements of several things: PCI addresses, and the attributes of every virtio device."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.vm.guest import Guest
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


def virtio_model(guest: Guest) -> str:
    """Return the model: for PCI Express alone, or one that guests from before virtio 1.0 know too."""
    return "virtio-transitional" if guest.has_transitional_virtio else "virtio-non-transitional"


def goes_by_dma_api(guest: Guest) -> bool:
    """Return whether a virtio device uses the guest's DMA API, since it reaches only memory that the guest shares."""
    return guest.confidentiality is not None and guest.confidentiality.shares_buffers


def virtio_driver(guest: Guest) -> list[Element]:
    """Return the <driver> of a virtio device, if there is something to say in it."""
    return [E.driver(iommu="on")] if goes_by_dma_api(guest) else []
