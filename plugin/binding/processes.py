"""What the node's processes hold, as /proc shows it: open device files, mounted file systems, swap."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from program.problem import Problem

#: The node's own PID namespace (PROC_PID_INIT_INO in include/linux/proc_ns.h). In any other, /proc shows a part.
_WHOLE_NODE = "pid:[4026531836]"

_DELETED = " (deleted)"


@dataclass(frozen=True, slots=True)
class Processes:
    """What the node's processes hold.

    `openers`: who has a device file open, by its path: `/dev/dri/card0` -> (`Xorg (pid 812)`, ...), by pid. `mounts`:
    where a file system is mounted, by the number of its device, `259:2`, and by what was mounted, `/dev/nvme0n1p2`.
    `swaps`: the device files that are swapped to. `nvidia_nodes`: NVIDIA's device files by PCI address, of which sysfs
    knows nothing. `unseen`: why not every process of the node was looked at; None if all were.
    """

    openers: Mapping[str, tuple[str, ...]]
    mounts: Mapping[str, str]
    swaps: frozenset[str]
    nvidia_nodes: Mapping[str, str]
    unseen: Problem | None


def read_processes(proc: Path) -> Processes:
    """Look at every process in the directory that stands for /proc."""
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
    openers: dict[str, list[str]] = {}
    mounts: dict[str, str] = {}
    namespaces: set[str] = set()
    for number in sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal()):
        process = proc / str(number)
        try:
            for path in _open_devices(process):
                openers.setdefault(path, []).append(f"{_text(process / 'comm').strip()} (pid {number})")
            # A container has mounts of its own, and all its processes have the same.
            namespace = _link(process / "ns/mnt") or str(number)
            if namespace not in namespaces:
                namespaces.add(namespace)
                for device, mount_point in _mounts(process):
                    mounts.setdefault(device, mount_point)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except OSError as error:
            unseen = unseen or Problem(
                str(process), f"cannot see what it has open: {error.strerror}", "run as root, with SYS_PTRACE"
            )
    return Processes(
        openers={path: tuple(openers[path]) for path in sorted(openers)},
        mounts=mounts,
        swaps=frozenset(line.split()[0] for line in _text_if_any(proc / "swaps").splitlines()[1:]),
        nvidia_nodes=dict(_nvidia_nodes(proc / "driver/nvidia/gpus")),
        unseen=unseen,
    )


def _open_devices(process: Path) -> set[str]:
    devices: set[str] = set()
    for descriptor in (process / "fd").iterdir():
        try:
            path = str(descriptor.readlink())
        except FileNotFoundError:
            continue  # closed meanwhile
        if path.startswith("/dev/"):
            devices.add(path.removesuffix(_DELETED))
    return devices


def _mounts(process: Path) -> Iterator[tuple[str, str]]:
    """Device and mount point, from lines of proc_pid_mountinfo(5); btrfs has numbers of its own, so the source too.

    36 35 259:2 / /data rw,noatime master:1 - ext4 /dev/nvme0n1p2 rw
    """
    for line in _text(process / "mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        _, _, number, _, mount_point, *_ = before.split()
        _, source, *_ = after.split()
        yield number, mount_point
        if source.startswith("/dev/"):
            yield source, mount_point


def _nvidia_nodes(gpus: Path) -> Iterator[tuple[str, str]]:
    """From `Device Minor: 	 0` in driver/nvidia/gpus/0000:01:00.0/information."""
    for information in sorted(gpus.glob("*/information")):
        match = re.search(r"^Device Minor:\s*([0-9]+)$", _text_if_any(information), re.MULTILINE)
        if match is not None:
            yield information.parent.name, f"/dev/nvidia{match[1]}"


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
