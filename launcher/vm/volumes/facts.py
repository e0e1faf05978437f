"""Reads in the pod what only the volumes themselves tell: whether a claim is a block device, which disk an image has
and whether it is raw, direct I/O, block sizes. The pod mounts the image of a containerDisk whole and read-only.

KubeVirt's handler and launcher read the same (pkg/container-disk, GetImageInfo; virtwrap/converter/block_io_linux.go).
"""

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from launcher.vm import paths
from launcher.vm.facts import BlockSizes, Facts, OwnMachine
from launcher.vm.spec import Spec
from launcher.vm.volumes.guest import OVERLAID, brought_disk
from launcher.vm.volumes.images import is_qcow2
from launcher.vm.volumes.manifest import Volume
from pci.sysfs.attribute import Unreadable
from pci.sysfs.block import read_block_sizes
from program.errors import Refusal


def facts_of_volumes(spec: Spec, root: Path, sys: Path, own: OwnMachine | None = None) -> Facts:
    """Read the volumes' `block`, `raw_images`, `no_direct_io` and `block_sizes` in the pod's `root` and `sys`.

    A missing volume counts as a claim with a file system, or as a qcow2 image; needs_of() says that it is missing.
    """
    own_disks = own.disks if own is not None else {}
    claims = {
        volume.name: paths.below(root, paths.block_device(volume.name))
        for volume in spec.volumes
        if volume.kind in ("persistentVolumeClaim", "dataVolume", "ephemeral")
    }
    block = frozenset(name for name, device in {**claims, **own_disks}.items() if device.is_block_device())
    images = {volume.name: disks_in_image(volume, root) for volume in spec.volumes if volume.kind == "containerDisk"}
    matching = {
        disk.name: own_disks.get(disk.name)
        or paths.below(root, paths.claimed_disk(disk.name, is_block=disk.name in block))
        for disk in spec.disks
        if disk.blockSize.matches_volume
    }
    sizes = {name: sizes for name, disk in matching.items() if (sizes := _sizes(disk, sys)) is not None}
    raw_images = {name for name, files in images.items() if len(files) == 1 and is_qcow2(files[0]) is False}
    # A guest writes what it likes into a raw file, so that the name says the format, and not the content.
    raw_images |= {name for name, path in own_disks.items() if name not in block and path.suffix != ".qcow2"}
    facts = Facts(block=block, raw_images=frozenset(raw_images), block_sizes=sizes, own=own)
    no_direct_io = frozenset(
        volume.name
        for volume in spec.volumes
        if not all(map(_takes_direct_io, (*_opened(volume, facts, root), *images.get(volume.name, ()))))
    )
    return replace(facts, no_direct_io=no_direct_io)


def _opened(volume: Volume, facts: Facts, root: Path) -> Iterator[Path]:
    """Yield the files that QEMU writes for the volume; some are made there at the start."""
    if volume.kind in OVERLAID:
        yield paths.below(root, facts.place(paths.overlay(volume.name)))
    if volume.kind == "emptyDisk":
        yield paths.below(root, facts.place(paths.empty_disk(volume.name)))
    if (disk := brought_disk(volume, facts)) is not None:
        yield paths.below(root, disk)


def _takes_direct_io(path: Path) -> bool:
    """Return whether the file system of a file takes O_DIRECT (open(2), EINVAL), also of a file that is made later.

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


_DIRECTORY = "disk"  # KubeVirt's pkg/container-disk, DiskSourceFallbackPath


def disks_in_image(volume: Volume, root: Path) -> tuple[Path, ...]:
    """Return the files that may be the disk, with links resolved: the file of containerDisk.path, or all in the image's
    directory disk/. Leave out a link that leads out of the image."""
    assert volume.containerDisk is not None, "it is the volume's kind"
    image = paths.below(root, paths.image_volume(volume.name))
    named = volume.containerDisk.path
    try:
        files = [image / named.lstrip("/")] if named is not None else sorted((image / _DIRECTORY).iterdir())
        real = [path.resolve() for path in files if path.is_file()]
        return tuple(path for path in real if path.is_relative_to(image.resolve()))
    except OSError:
        return ()


def only_disk(volume: Volume, root: Path) -> Path:
    """Return the disk of the image; Refusal if there is none, or more than one."""
    files = disks_in_image(volume, root)
    if len(files) == 1:
        return files[0]
    assert volume.containerDisk is not None, "it is the volume's kind"
    mount = paths.below(root, paths.image_volume(volume.name))
    named = volume.containerDisk.path
    if not mount.is_dir():
        wrong, fix = f"its image is not mounted at {mount}", "expected an image volume of the pod there"
    elif named is not None:
        wrong = f"its image, mounted at {mount}, has no file {named}"
        fix = "expected containerDisk.path to name its disk"
    elif not files:
        wrong, fix = f"its image has no disk in {mount}/disk", "put one there, or name its file in containerDisk.path"
    else:
        names = ", ".join(path.name for path in files)
        wrong, fix = f"its image has several files in {mount}/disk: {names}", "name the disk in containerDisk.path"
    raise Refusal(f"the volume {volume.name!r}", wrong, fix)
