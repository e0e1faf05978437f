"""<filesystem>: the volumes that the guest mounts by virtiofs. The launcher's own virtiofsd is behind each socket."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher import paths
from launcher.elements.virtio import is_encrypted
from launcher.manifest.spec import Domain

_QUEUE = "1024"  # requests; KubeVirt's


def filesystems(domain: Domain) -> list[Element]:
    iommu = {"iommu": "on"} if is_encrypted(domain) else {}
    return [
        E.filesystem(
            E.driver(type="virtiofs", queue=_QUEUE, **iommu),
            E.source(socket=paths.virtiofs_socket(filesystem.name)),
            E.target(dir=filesystem.name),
            type="mount",
            accessmode="passthrough",
        )
        for filesystem in domain.devices.filesystems
    ]
