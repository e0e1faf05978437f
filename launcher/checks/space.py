"""Room for the guest's files that are removed with the pod: empty disks, and overlays of images."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.checks.finding import warning
from launcher.checks.wording import POD, Wording
from launcher.storage.media import EmptyImage, Need, Overlay, Symlink
from launcher.storage.qcow2 import MAGIC
from program.finding import Finding

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Growing:
    """A file that may grow `by` so many bytes."""

    path: Path
    by: int


@dataclass(frozen=True, slots=True)
class Room:
    """A file system: one of its directories, its free bytes, and the files that may grow on it."""

    directory: Path
    free: int
    growing: tuple[Growing, ...]


def read_rooms(needs: Iterable[Need]) -> tuple[Room, ...]:
    """Read the file systems on which files grow, except those that cannot be read."""
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


def space(rooms: tuple[Room, ...], wording: Wording = POD) -> Iterator[Finding]:
    """Yield a warning for each file system that may become full. It is no error: a guest may never fill its disks."""
    for room in rooms:
        needed = sum(growing.by for growing in room.growing)
        if needed > room.free:
            files = ", ".join(str(growing.path) for growing in room.growing)
            yield warning(
                room.directory,
                f"has {room.free // _MIB} MiB free, and what the guest writes to {files} may take {needed // _MIB} MiB",
                wording.room,
            )


def _growing(needs: Iterable[Need]) -> Iterator[Growing]:
    targets: dict[Path, Path] = {}
    for need in needs:
        if isinstance(need, Symlink):
            targets[need.path] = need.target
        elif isinstance(need, EmptyImage):
            yield Growing(need.path, need.size - _taken(need.path))
        elif isinstance(need, Overlay):
            size = _size_of_disk(targets.get(need.below, need.below))
            if size is not None:
                yield Growing(need.path, size - _taken(need.path))


def _taken(file: Path) -> int:
    """The bytes that the file of an earlier start in this pod takes already."""
    try:
        return file.stat().st_blocks * 512
    except OSError:
        return 0


def _size_of_disk(image: Path) -> int | None:
    """The size of the disk in the guest, which qcow2 has in bytes 24 to 31 (QEMU's docs/interop/qcow2.txt)."""
    try:
        with image.open("rb") as file:
            header = file.read(32)
            if header.startswith(MAGIC):
                return int.from_bytes(header[24:], "big")
            return file.seek(0, os.SEEK_END)
    except OSError:
        return None
