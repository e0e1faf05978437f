"""What every virtio device says of itself: which generation it is, and whether it minds the guest's encryption."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.guest import Guest


def virtio_model(guest: Guest) -> str:
    """Return the model: of PCI Express alone, or one that guests from before virtio 1.0 know too."""
    return "virtio-transitional" if guest.has_transitional_virtio else "virtio-non-transitional"


def goes_by_dma_api(guest: Guest) -> bool:
    """Return whether a virtio device goes by the guest's DMA API, since it reaches only what the guest shares."""
    return guest.confidentiality is not None and guest.confidentiality.shares_buffers


def virtio_driver(guest: Guest) -> list[Element]:
    """Return the <driver> of a virtio device, if there is something to say in it."""
    return [E.driver(iommu="on")] if goes_by_dma_api(guest) else []
