"""Open device files, mounted file systems and swap of the node's processes, from /proc."""

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from plugin.nvml import read_information
from program.errors import Refusal
from program.problem import Problem

#: The node's own PID namespace (PROC_PID_INIT_INO in include/linux/proc_ns.h). In any other, /proc shows a part.
_WHOLE_NODE = "pid:[4026531836]"

#: File systems on several devices, which a mount names by one of them. Only root can mount these, so their sources are
#: true; other file systems may name any source.
_NAMED_BY_A_DEVICE = ("bcachefs", "btrfs")


class DeviceNumber(NamedTuple):
    """The number of a device. Character and block devices are numbered independently."""

    is_block: bool
    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class Processes:
    """The devices that the node's processes hold.

    `openers`: the processes that have a device open, (`Xorg (pid 812)`, ...), by its number. `mounts`: the mount points
    by device number, `259:2`, and by source, `/dev/nvme0n1p2`. `swaps`: the device files of swap. `nvidia_minors`: the
    minor numbers of NVIDIA's device files by PCI address, which sysfs does not have. `unseen`: why some process could
    not be looked at; None if all were.
    """

    openers: Mapping[DeviceNumber, tuple[str, ...]]
    mounts: Mapping[str, str]
    swaps: frozenset[str]
    nvidia_minors: Mapping[str, int]
    unseen: Problem | None


def refuse_unseen(unseen: Problem | None) -> None:
    """Raise Refusal if a process could not be looked at (`unseen` says why): it may use a card."""
    if unseen is not None:
        raise Refusal("who uses the cards", f"cannot be seen: {unseen.subject} {unseen.wrong}", unseen.fix)


def read_processes(proc: Path) -> Processes:
    """Read every process in the directory that stands for /proc."""
    if not proc.is_dir():
        nowhere = Problem(str(proc), "does not exist", "run on the node itself, with its /proc beside /sys")
        return Processes({}, {}, frozenset(), {}, nowhere)
    unseen = None
    if _link(proc / "1/ns/pid") not in (None, _WHOLE_NODE):
        unseen = Problem(
            str(proc),
            "shows one container's processes only",
            "run on the node itself, or in a pod that has the node's /proc mounted",
        )
    openers: dict[DeviceNumber, list[str]] = {}
    mounts: dict[str, str] = {}
    namespaces: set[str] = set()
    for number in sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal()):
        process = proc / str(number)
        try:
            who = f"{_text(process / 'comm').strip()} (pid {number})"
            for place in _places(process):
                for device in _open_devices(place):
                    openers.setdefault(device, []).append(who)
                # A container has mounts of its own, and all its processes have the same.
                namespace = _link(place / "ns/mnt") or str(number)
                if namespace not in namespaces:
                    namespaces.add(namespace)
                    for source, mount_point in _mounts(place):
                        mounts.setdefault(source, mount_point)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except OSError as error:
            unseen = unseen or Problem(
                str(process), f"cannot see what it has open: {error.strerror}", "run as root, with SYS_PTRACE"
            )
    return Processes(
        openers={device: tuple(openers[device]) for device in sorted(openers)},
        mounts=mounts,
        swaps=frozenset(line.split()[0] for line in _text_if_any(proc / "swaps").splitlines()[1:]),
        nvidia_minors={
            address: card.minor for address, card in read_information(proc).items() if card.minor is not None
        },
        unseen=unseen,
    )


def number_of(device_file: Path) -> DeviceNumber | None:
    """Return the number of a device file, or of a descriptor in /proc; None for any other file."""
    status = device_file.stat()
    is_block = stat.S_ISBLK(status.st_mode)
    if not is_block and not stat.S_ISCHR(status.st_mode):
        return None
    return DeviceNumber(is_block, os.major(status.st_rdev), os.minor(status.st_rdev))


def _places(process: Path) -> list[Path]:
    """Return the directories that show a process's files: its own or, once its first thread has ended, those of its
    other threads. A zombie has none."""
    if _is_alive(process):
        return [process]
    return [thread for thread in (process / "task").iterdir() if _is_alive(thread)]


def _is_alive(thread: Path) -> bool:
    """Return whether a thread is alive: for the mounts of one that has ended the kernel answers EINVAL."""
    try:
        (thread / "mountinfo").open("rb").close()
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT, errno.ESRCH):
            return False
        raise
    return True


def _open_devices(process: Path) -> set[DeviceNumber]:
    devices: set[DeviceNumber] = set()
    for descriptor in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            if (device := _open_device(process, descriptor)) is not None:
                devices.add(device)
    return devices


def _open_device(process: Path, descriptor: Path) -> DeviceNumber | None:
    try:
        return number_of(descriptor)
    except FileNotFoundError:
        raise
    except OSError:
        if _is_without_devices(process, descriptor.name):
            return None
        raise


def _is_without_devices(process: Path, descriptor: str) -> bool:
    """Return whether an open file is on a mount without devices (nodev), as are all mounts by users. A user's FUSE may
    give root no answer, or any error, for a file that is open there."""
    information = dict(
        line.split(":", 1) for line in _text(process / "fdinfo" / descriptor).splitlines() if ":" in line
    )
    mounts = (line.split() for line in _text(process / "mountinfo").splitlines())
    options = {mount[0]: mount[5].split(",") for mount in mounts}
    return "nodev" in options.get(information.get("mnt_id", "").strip(), ())


def _mounts(process: Path) -> Iterator[tuple[str, str]]:
    """Yield devices and mount points from lines of proc_pid_mountinfo(5); btrfs has its own numbers, so also sources.

    36 35 259:2 / /data rw,noatime master:1 - ext4 /dev/nvme0n1p2 rw
    """
    for line in _text(process / "mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        _, _, number, _, mount_point, *_ = before.split()
        kind, source, *_ = after.split()
        yield number, mount_point
        if kind in _NAMED_BY_A_DEVICE:
            for device in source.split(":"):
                yield device, mount_point


def _link(path: Path) -> str | None:
    try:
        return str(path.readlink())
    except OSError:
        return None


def _text(path: Path) -> str:
    # Names are any bytes.
    return path.read_text(encoding="utf-8", errors="replace")


def _text_if_any(path: Path) -> str:
    try:
        return _text(path)
    except OSError:
        return ""
