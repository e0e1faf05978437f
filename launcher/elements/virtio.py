"""What every virtio device says of itself: which generation it is, and whether it minds the guest's encryption."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.manifest.spec import Domain


def virtio_model(domain: Domain) -> str:
    """Return the model: of PCI Express alone, or one that guests from before virtio 1.0 know too."""
    return "virtio-transitional" if domain.devices.useVirtioTransitional else "virtio-non-transitional"


def is_encrypted(domain: Domain) -> bool:
    """Return whether SEV or SEV-SNP encrypts the guest's memory, so that a device sees only what the guest shares.

    Then virtio devices go by the guest's IOMMU API, as for KubeVirt.
    """
    security = domain.launchSecurity
    return security is not None and (security.sev is not None or security.snp is not None)


def virtio_driver(domain: Domain) -> list[Element]:
    """Return the <driver> of a virtio device, if there is something to say in it."""
    return [E.driver(iommu="on")] if is_encrypted(domain) else []
