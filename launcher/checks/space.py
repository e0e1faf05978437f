"""Room on disk for what the guest writes that goes with the pod: empty disks, and what it writes over images."""

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher import paths
from launcher.checks.finding import Finding, warning
from launcher.facts import Facts
from launcher.manifest.spec import VirtualMachineInstance
from launcher.manifest.volumes import Volume
from launcher.storage.container_disks import disks_in_image
from launcher.storage.qcow2 import MAGIC

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Growing:
    """A file that may grow by so much: of which volume, where, in bytes."""

    volume: str
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Room:
    """A file system: the directory that it was asked of, its free bytes, and what may grow on it."""

    directory: str
    free: int
    growing: tuple[Growing, ...]


def read_rooms(vmi: VirtualMachineInstance, facts: Facts, root: Path) -> tuple[Room, ...]:
    """The file systems, below the pod's `root`, on which files grow. What cannot be seen is left out."""
    found: defaultdict[int, list[Growing]] = defaultdict(list)
    places: dict[int, tuple[str, int]] = {}
    for growing in _growing(vmi, facts, root):
        directory = root / growing.path.lstrip("/")
        while not directory.is_dir():
            directory = directory.parent
        try:
            device, status = directory.stat().st_dev, os.statvfs(directory)
        except OSError:
            continue
        found[device].append(growing)
        places[device] = (str(Path("/") / directory.relative_to(root)), status.f_bavail * status.f_frsize)
    return tuple(Room(*places[device], tuple(growing)) for device, growing in found.items())


def space(rooms: tuple[Room, ...]) -> Iterator[Finding]:
    """A warning alone: the files have no size at first, and a guest may never fill its disks."""
    for room in rooms:
        needed = sum(growing.size for growing in room.growing)
        if needed > room.free:
            names = ", ".join(repr(growing.volume) for growing in room.growing)
            yield warning(
                room.directory,
                f"has {room.free // _MIB} MiB free, and what the guest writes to {names} may take {needed // _MIB} MiB",
                "give the pod more ephemeral-storage, or mount a larger volume there; a full one pauses the guest",
            )


def _growing(vmi: VirtualMachineInstance, facts: Facts, root: Path) -> Iterator[Growing]:
    for volume in vmi.spec.volumes:
        if volume.emptyDisk is not None:
            path = paths.empty_disk(volume.name)
            yield Growing(volume.name, path, volume.emptyDisk.capacity - _taken(root / path.lstrip("/")))
        elif volume.kind in ("ephemeral", "containerDisk"):
            path = paths.overlay(volume.name)
            size = _size_of_disk(_below(volume, facts, root))
            if size is not None:
                yield Growing(volume.name, path, size - _taken(root / path.lstrip("/")))


def _below(volume: Volume, facts: Facts, root: Path) -> Path | None:
    """What an overlay is over; None where it cannot be told."""
    if volume.kind == "containerDisk":
        found = disks_in_image(volume, root)
        return found[0] if len(found) == 1 else None
    name = volume.name
    return root / (paths.block_device(name) if name in facts.block else paths.disk_image(name)).lstrip("/")


def _taken(file: Path) -> int:
    """What an earlier start in the same pod has left takes already."""
    try:
        return file.stat().st_blocks * 512
    except OSError:
        return 0


def _size_of_disk(image: Path | None) -> int | None:
    """The disk's size as the guest has it: qcow2 says it in bytes 24 to 31 (QEMU's docs/interop/qcow2.txt)."""
    if image is None:
        return None
    try:
        with image.open("rb") as file:
            header = file.read(32)
            if header.startswith(MAGIC):
                return int.from_bytes(header[24:], "big")
            return file.seek(0, os.SEEK_END)
    except OSError:
        return None
