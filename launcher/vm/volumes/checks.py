"""Opens the files and devices that the pod brings for the guest, as QEMU will open them, and finds two disks over one
image; and the room for files that are removed with the pod: empty disks, and overlays of images.

launcher.vm.volumes.files refuses what is missing or cannot be made.
"""

import os
import shlex
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.vm import paths
from launcher.vm.checks import POD, Wording, because, error, is_missing, opened, warning
from launcher.vm.disks.guest import lacks_direct_io
from launcher.vm.facts import Facts
from launcher.vm.spec import Spec
from launcher.vm.volumes.guest import OVERLAID, brought_disk
from launcher.vm.volumes.images import MAGIC
from launcher.vm.volumes.manifest import Volume
from launcher.vm.volumes.media import Brought, EmptyImage, Need, Overlay, Symlink
from launcher.vm.volumes.places import regular_file
from program.errors import Refusal
from program.finding import Finding


def volumes(spec: Spec, facts: Facts, root: Path, needs: Iterable[Need], wording: Wording = POD) -> Iterator[Finding]:
    """Yield disks of claims and of the node that cannot be opened; disks that need the node's cache; two disks over one
    image; and kernels, ACPI tables and ROMs among the `needs` that are missing or cannot be read."""
    for volume in spec.volumes:
        if volume.name not in spec.shared and (path := brought_disk(volume, facts)) is not None:
            reads = _is_read(spec, volume)
            file = paths.below(root, path)
            if volume.name not in facts.block and not _is_regular(file):
                continue  # launcher.vm.volumes.files says so; a link's target is not ours to open
            outcome = opened(file, writing=not reads)
            if outcome is not None and not is_missing(outcome):
                how = "read" if reads else "written"
                fix = wording.no_disk_access.format(path=path)
                if volume.hostDisk is not None and facts.own is None:
                    fix = f"give it to the pod's user on the node: chown 107:107 {shlex.quote(volume.hostDisk.path)}"
                yield error(f"the volume {volume.name!r}", f"{path} cannot be {how}: {because(outcome)}", fix)
    yield from _twice(spec, facts, root)
    for disk in spec.disks:
        if lacks_direct_io(disk, facts):
            yield warning(
                f"the volume {disk.name!r}",
                "is on a file system without direct I/O (O_DIRECT), so that its disk has cache: writethrough",
                "expected a file system with it, so that the guest's disk is not in the node's memory as well, or "
                "cache: writethrough in the manifest",
            )
    for need in needs:
        if isinstance(need, Brought) and need.fix:
            yield from _readable(need)


def _is_read(spec: Spec, volume: Volume) -> bool:
    """Return whether the guest only reads the disk that a volume brings."""
    claim = volume.persistentVolumeClaim
    is_below = volume.kind in OVERLAID
    targets = [disk.target for disk in spec.disks if disk.name == volume.name]
    return is_below or (claim is not None and claim.readOnly) or any(target.readonly for target in targets)


def _twice(spec: Spec, facts: Facts, root: Path) -> Iterator[Finding]:
    """Yield an error for each disk over the image of an earlier disk, if the guest writes to either: QEMU locks an
    image that it writes, unless both disks are shareable."""
    shareable = {disk.name for disk in spec.disks if disk.shareable}
    earlier: list[tuple[tuple[int, int], Volume]] = []
    for volume in spec.volumes:
        path = brought_disk(volume, facts) if volume.name not in spec.shared else None
        image = _image(paths.below(root, path)) if path is not None else None
        if image is None:
            continue
        for other in (each for same, each in earlier if same == image):
            if _is_read(spec, volume) and _is_read(spec, other):
                continue
            if not {volume.name, other.name} <= shareable:
                yield error(
                    f"the volumes {other.name!r} and {volume.name!r}",
                    f"are one image, {path}, and QEMU writes to no image that it has open twice",
                    "give each an image of its own, or make both disks read-only or shareable",
                )
        earlier.append((image, volume))


def _image(file: Path) -> tuple[int, int] | None:
    """Return the identity of a file or a block device; None for one that is missing."""
    try:
        status = file.stat()
    except OSError:
        return None
    return (0, status.st_rdev) if stat.S_ISBLK(status.st_mode) else (status.st_dev, status.st_ino)


def _is_regular(file: Path) -> bool:
    try:
        return stat.S_ISREG(file.lstat().st_mode)
    except OSError:
        return False


def _readable(need: Brought) -> Iterator[Finding]:
    try:
        outcome = opened(regular_file(need.whose, need.path, need.volume), writing=False)
    except Refusal as refused:
        yield error(need.whose, refused.problem.wrong, need.fix)
        return
    if outcome is not None:
        yield error(need.whose, f"{need.path} cannot be read: {because(outcome)}", need.fix)


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
    """Return the bytes that the file takes already, from an earlier start in this pod."""
    try:
        return file.stat().st_blocks * 512
    except OSError:
        return 0


def _size_of_disk(image: Path) -> int | None:
    """Return the disk's size in the guest; qcow2 has it in bytes 24 to 31 (QEMU's docs/interop/qcow2.txt)."""
    try:
        with image.open("rb") as file:
            header = file.read(32)
            if header.startswith(MAGIC):
                return int.from_bytes(header[24:], "big")
            return file.seek(0, os.SEEK_END)
    except OSError:
        return None
