"""Disks that outlive the pod: those of claims, and files of the node."""

import shutil
from pathlib import Path, PurePosixPath

from launcher import paths
from launcher.errors import Refusal
from launcher.facts import Facts
from launcher.manifest.volumes import Volume
from launcher.storage.made import RawDisk


def claimed_disk(name: str, facts: Facts, root: Path) -> Path:
    """The claim's disk; Refusal where it has none."""
    if name in facts.block:
        return paths.below(root, paths.block_device(name))
    image = paths.below(root, paths.disk_image(name))
    if not image.exists():
        # KubeVirt makes an empty one, as large as the API server says that the claim is.
        raise Refusal(
            f"the volume {name!r}: its claim has no disk: there is neither {paths.block_device(name)} nor {image}; "
            "expected the file disk.img at the top of the claim, in raw format, or a claim with volumeMode: Block"
        )
    return image


def host_disk(volume: Volume, root: Path) -> tuple[RawDisk, ...]:
    """The file of a hostDisk, where it is to be made and is not there; Refusal where it is not, and cannot be."""
    said = volume.hostDisk
    assert said is not None, "it is the volume's kind"
    file = paths.below(root, paths.disk_image(volume.name, PurePosixPath(said.path).name))
    if file.exists():
        return ()
    missing = f"the volume {volume.name!r}: there is no {file}, which is {said.path} of the node"
    if said.type == "Disk":
        raise Refusal(f"{missing}; put a disk image there, or write type: DiskOrCreate with a capacity")
    if said.capacity is None:
        raise Refusal(f"{missing}; write its capacity, with which it is made")
    try:
        free = shutil.disk_usage(file.parent).free
    except OSError as error:
        raise Refusal(f"{missing}: {file.parent}: {error.strerror}; expected the pod to mount it there") from error
    if said.capacity > free:
        raise Refusal(
            f"{missing}; it is to have {said.capacity} bytes, and {free} are free there: make room, or write a "
            "smaller capacity"
        )
    return (RawDisk(file, said.capacity),)
