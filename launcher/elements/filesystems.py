"""<filesystem>: the volumes that the guest mounts by virtiofs. The launcher's own virtiofsd is behind each socket."""

from collections.abc import Iterable

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher import paths
from launcher.elements.virtio import goes_by_dma_api
from launcher.guest import Guest
from launcher.manifest.filesystems import Filesystem

_QUEUE = "1024"  # requests; KubeVirt's


def filesystems(filesystems: Iterable[Filesystem], guest: Guest) -> list[Element]:
    iommu = {"iommu": "on"} if goes_by_dma_api(guest) else {}
    return [
        E.filesystem(
            E.driver(type="virtiofs", queue=_QUEUE, **iommu),
            E.source(socket=paths.virtiofs_socket(filesystem.name)),
            E.target(dir=filesystem.name),
            type="mount",
            accessmode="passthrough",
        )
        for filesystem in filesystems
    ]
