"""Room on disk for what the guest writes that goes with the pod: empty disks, and what it writes over images."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.checks.finding import warning
from launcher.storage.media import EmptyImage, Link, Need, Overlay
from launcher.storage.qcow2 import MAGIC
from program.finding import Finding

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Growing:
    """A file that may grow by so many bytes."""

    path: Path
    by: int


@dataclass(frozen=True, slots=True)
class Room:
    """A file system: the directory that it was asked of, its free bytes, and what may grow on it."""

    directory: Path
    free: int
    growing: tuple[Growing, ...]


def read_rooms(needs: Iterable[Need]) -> tuple[Room, ...]:
    """The file systems on which files grow. What cannot be seen is left out."""
    files: defaultdict[int, list[Growing]] = defaultdict(list)
    places: dict[int, tuple[Path, int]] = {}
    for growing in _growing(needs):
        directory = next(parent for parent in growing.path.parents if parent.is_dir())
        try:
            device, status = directory.stat().st_dev, os.statvfs(directory)
        except OSError:
            continue
        files[device].append(growing)
        places[device] = (directory, status.f_bavail * status.f_frsize)
    return tuple(Room(*places[device], tuple(growing)) for device, growing in files.items())


def space(rooms: tuple[Room, ...]) -> Iterator[Finding]:
    """A warning alone: the files have no size at first, and a guest may never fill its disks."""
    for room in rooms:
        needed = sum(growing.by for growing in room.growing)
        if needed > room.free:
            files = ", ".join(str(growing.path) for growing in room.growing)
            yield warning(
                room.directory,
                f"has {room.free // _MIB} MiB free, and what the guest writes to {files} may take {needed // _MIB} MiB",
                "give the pod more ephemeral-storage, or mount a larger volume there: a full one pauses the guest",
            )


def _growing(needs: Iterable[Need]) -> Iterator[Growing]:
    targets: dict[Path, Path] = {}
    for need in needs:
        if isinstance(need, Link):
            targets[need.path] = need.target
        elif isinstance(need, EmptyImage):
            yield Growing(need.path, need.size - _taken(need.path))
        elif isinstance(need, Overlay):
            size = _size_of_disk(targets.get(need.below, need.below))
            if size is not None:
                yield Growing(need.path, size - _taken(need.path))


def _taken(file: Path) -> int:
    """What an earlier start in the same pod has left takes already."""
    try:
        return file.stat().st_blocks * 512
    except OSError:
        return 0


def _size_of_disk(image: Path) -> int | None:
    """The disk's size as the guest has it: qcow2 says it in bytes 24 to 31 (QEMU's docs/interop/qcow2.txt)."""
    try:
        with image.open("rb") as file:
            header = file.read(32)
            if header.startswith(MAGIC):
                return int.from_bytes(header[24:], "big")
            return file.seek(0, os.SEEK_END)
    except OSError:
        return None
