"""What all virtio devices of a VM have in common."""

from launcher.manifest.spec import Domain


def model(domain: Domain) -> str:
    """Whether guests without virtio 1.0 see the devices too (KubeVirt's converter/virtio/transitional-model.go)."""
    return "virtio-transitional" if domain.devices.useVirtioTransitional else "virtio-non-transitional"


def behind_iommu(domain: Domain) -> bool:
    """Whether devices have to use the guest's DMA API: AMD encrypts its memory (KubeVirt's IsSEVVMI)."""
    security = domain.launchSecurity
    return security is not None and (security.sev is not None or security.snp is not None)
