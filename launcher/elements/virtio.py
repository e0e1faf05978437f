"""What every virtio device says of itself: which generation it is, and whether it minds the guest's encryption."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.manifest.spec import Domain


def virtio_model(domain: Domain) -> str:
    """Of PCI Express alone, or in a form that guests from before virtio 1.0 know too."""
    return "virtio-transitional" if domain.devices.useVirtioTransitional else "virtio-non-transitional"


def is_encrypted(domain: Domain) -> bool:
    """Whether the guest's memory is encrypted by SEV or SEV-SNP, so that a device may read only what it is shown."""
    security = domain.launchSecurity
    return security is not None and (security.sev is not None or security.snp is not None)


def virtio_driver(domain: Domain) -> list[Element]:
    """<driver> of a virtio device, where there is something to say in it."""
    return [E.driver(iommu="on")] if is_encrypted(domain) else []
