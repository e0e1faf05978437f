"""Facts that only the volumes themselves tell, read in the pod: whether a claim is a block device, whether an image is
raw, direct I/O, block sizes.

KubeVirt's handler and launcher read the same (pkg/container-disk, GetImageInfo; virtwrap/converter/block_io_linux.go).
"""

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from launcher import paths
from launcher.devices.sources import OVERLAID, brought_disk
from launcher.facts import BlockSizes, Facts, OwnMachine
from launcher.manifest.spec import Spec
from launcher.manifest.volumes import Volume
from launcher.storage.container_disks import disks_in_image
from launcher.storage.qcow2 import is_qcow2
from pci.sysfs.attribute import Unreadable
from pci.sysfs.block import read_block_sizes


def facts_of_volumes(spec: Spec, root: Path, sys: Path, own: OwnMachine | None = None) -> Facts:
    """Read the volumes' `block`, `raw_images`, `no_direct_io` and `block_sizes` in the pod's `root` and `sys`.

    A missing volume counts as a claim with a file system, or as a qcow2 image; needs_of() says that it is missing.
    """
    given = own.disks if own is not None else {}
    claims = {
        volume.name: paths.below(root, paths.block_device(volume.name))
        for volume in spec.volumes
        if volume.kind in ("persistentVolumeClaim", "dataVolume", "ephemeral")
    }
    block = frozenset(name for name, device in {**claims, **given}.items() if device.is_block_device())
    images = {volume.name: disks_in_image(volume, root) for volume in spec.volumes if volume.kind == "containerDisk"}
    matching = {
        disk.name: given.get(disk.name) or paths.below(root, paths.claimed_disk(disk.name, is_block=disk.name in block))
        for disk in spec.disks
        if disk.blockSize.matches_volume
    }
    sizes = {name: sizes for name, disk in matching.items() if (sizes := _sizes(disk, sys)) is not None}
    raw_images = {name for name, found in images.items() if len(found) == 1 and is_qcow2(found[0]) is False}
    # A guest writes what it likes into a raw file, so that the name says the format, and not the content.
    raw_images |= {name for name, path in given.items() if name not in block and path.suffix != ".qcow2"}
    facts = Facts(block=block, raw_images=frozenset(raw_images), block_sizes=sizes, own=own)
    no_direct_io = frozenset(
        volume.name
        for volume in spec.volumes
        if not all(map(_takes_direct_io, (*_opened(volume, facts, root), *images.get(volume.name, ()))))
    )
    return replace(facts, no_direct_io=no_direct_io)


def _opened(volume: Volume, facts: Facts, root: Path) -> Iterator[Path]:
    """The files that QEMU writes for the volume; those that are not there yet are made there."""
    if volume.kind in OVERLAID:
        yield paths.below(root, facts.place(paths.overlay(volume.name)))
    if volume.kind == "emptyDisk":
        yield paths.below(root, facts.place(paths.empty_disk(volume.name)))
    if (disk := brought_disk(volume, facts)) is not None:
        yield paths.below(root, disk)


def _takes_direct_io(path: Path) -> bool:
    """Whether the file system of what is there, or is to be there, takes O_DIRECT (open(2), EINVAL).

    What cannot be opened for another reason counts for one that does: others say why.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    if not os.path.lexists(path):
        path = next(parent for parent in path.parents if parent.is_dir())
        flags = os.O_RDWR | os.O_TMPFILE  # a file without a name
    try:
        os.close(os.open(path, flags | os.O_DIRECT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        return error.errno != errno.EINVAL
    return True


def _sizes(path: Path, sys: Path) -> BlockSizes | None:
    try:
        status = path.stat()
        if not stat.S_ISBLK(status.st_mode):
            size = os.statvfs(path).f_bsize
            return BlockSizes(size, size, size)
        sizes = read_block_sizes(sys, os.major(status.st_rdev), os.minor(status.st_rdev))
    except (OSError, Unreadable):
        return None
    return None if sizes is None else BlockSizes(*sizes)
