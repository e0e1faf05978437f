"""What only the volumes themselves say, looked at in the pod: is a claim a block device, is an image raw, which sizes.

KubeVirt's handler and launcher look as well (pkg/container-disk, GetImageInfo; virtwrap/converter/block_io_linux.go).
"""

import os
import stat
from pathlib import Path

from launcher import paths
from launcher.facts import BlockSizes, Facts
from launcher.manifest.spec import Spec
from launcher.storage.container_disks import disks_in_image
from launcher.storage.qcow2 import is_qcow2
from pci.sysfs.attribute import Unreadable
from pci.sysfs.block import read_block_sizes


def facts_of_volumes(spec: Spec, root: Path, sys: Path) -> Facts:
    """Facts with `block`, `raw_images` and `block_sizes` of these volumes, below the pod's `root` and in its `sys`.

    A volume that is not there counts for a claim with a file system, or a qcow2 image: needs_of() says what is missing.
    """
    block = frozenset(
        volume.name
        for volume in spec.volumes
        if volume.kind in ("persistentVolumeClaim", "dataVolume", "ephemeral")
        and paths.below(root, paths.block_device(volume.name)).is_block_device()
    )
    images = {volume.name: disks_in_image(volume, root) for volume in spec.volumes if volume.kind == "containerDisk"}
    matching = [disk.name for disk in spec.disks if disk.blockSize.matches_volume]
    sizes = {name: found for name in matching if (found := _sizes(_disk(name, block, root), sys)) is not None}
    raw_images = frozenset(name for name, found in images.items() if len(found) == 1 and _is_raw(found[0]))
    return Facts(block=block, raw_images=raw_images, block_sizes=sizes)


def _disk(name: str, block: frozenset[str], root: Path) -> Path:
    return paths.below(root, paths.claimed_disk(name, is_block=name in block))


def _is_raw(image: Path) -> bool:
    try:
        return not is_qcow2(image)
    except OSError:
        return False


def _sizes(path: Path, sys: Path) -> BlockSizes | None:
    try:
        found = path.stat()
        if not stat.S_ISBLK(found.st_mode):
            size = os.statvfs(path).f_bsize
            return BlockSizes(size, size, size)
        sizes = read_block_sizes(sys, os.major(found.st_rdev), os.minor(found.st_rdev))
    except (OSError, Unreadable):
        return None
    return None if sizes is None else BlockSizes(*sizes)
