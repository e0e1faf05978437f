"""Disks that outlive the pod: those of claims, and files of the node."""

import os
import shutil
from pathlib import Path, PurePosixPath

from launcher import paths
from launcher.facts import Facts
from launcher.manifest.volumes import Volume
from launcher.storage.media import Brought, RawDisk
from launcher.storage.regular_files import regular_file
from program.errors import Refusal


def claimed_disk(name: str, facts: Facts, root: Path) -> tuple[Brought, ...]:
    """The file of a claim with a file system, none of a block device; Refusal where it has no disk."""
    if name in facts.block:
        return ()
    whose, image = f"the volume {name!r}", paths.below(root, paths.disk_image(name))
    if not os.path.lexists(image):
        # KubeVirt makes an empty one, as large as the API server says that the claim is.
        raise Refusal(
            whose,
            f"its claim has no disk: there is neither {paths.block_device(name)} nor {image}",
            "expected the file disk.img at the top of the claim, in raw format, or a claim with volumeMode: Block",
        )
    return (_brought(whose, image),)


def host_disk(volume: Volume, root: Path) -> tuple[Brought | RawDisk, ...]:
    """The file of a hostDisk. Refusal where it is not there, or empty as the kubelet makes it, and cannot be made."""
    disk, whose = volume.hostDisk, f"the volume {volume.name!r}"
    assert disk is not None, "it is the volume's kind"
    file = paths.below(root, paths.disk_image(volume.name, PurePosixPath(disk.path).name))
    is_there = os.path.lexists(file)
    if is_there:
        brought = _brought(whose, file)
        if disk.type == "Disk" or file.lstat().st_size > 0:
            return (brought,)
    missing = f"{file}, which is {disk.path} of the node, is {'empty' if is_there else 'not there'}"
    if disk.type == "Disk":
        raise Refusal(whose, missing, "put a disk image there, or write type: DiskOrCreate with a capacity")
    if disk.capacity is None:
        raise Refusal(whose, missing, "write its capacity, with which it is made")
    try:
        free = shutil.disk_usage(file if is_there else file.parent).free
    except OSError as error:
        raise Refusal(whose, f"{missing}: {error.strerror}", "expected the pod to mount it there") from error
    if disk.capacity > free:
        raise Refusal(
            whose,
            f"{missing}, and is to have {disk.capacity} bytes, and {free} are free there",
            "make room, or write a smaller capacity",
        )
    return RawDisk(file, disk.capacity), Brought(file, file.parent, whose)


def _brought(whose: str, file: Path) -> Brought:
    """Refusal where it is not the volume's own."""
    regular_file(whose, file, file.parent)
    return Brought(file, file.parent, whose)
