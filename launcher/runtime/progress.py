"""QEMU's progress before its guest runs, from what the kernel reports of its process: libvirt does not report it.

QEMU allocates the guest's memory, opens the devices one by one, has VFIO pin the memory, and runs the firmware: then
libvirt reports the start.
"""

import re
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree  # lxml costs 5 MB in a process that stays

_GIB = 1 << 30
#: Where VFIO counts what it has pinned: the first with groups, the second with iommufd (proc_pid_status(5)).
_PINNED = ("VmLck", "VmPin")
_RESIDENT = ("VmRSS", "HugetlbPages")
_DEVICE = "anon_inode:[vfio-device]"


class Wanted(NamedTuple):
    """What the guest is to get: bytes of memory, and a number of the host's PCI devices."""

    memory: int
    devices: int


class Progress(NamedTuple):
    """What QEMU has so far: bytes of memory, its own among them; how many of these are pinned; how many devices are
    open, None if that cannot be seen."""

    memory: int
    pinned: int
    devices: int | None


def wanted_by(xml: str) -> Wanted:
    """Read what the guest is to get from a domain of ours."""
    tree = ElementTree.fromstring(xml)  # noqa: S314 it is ours
    hostdevs = tree.iterfind("devices/hostdev")
    return Wanted(int(tree.findtext("memory") or 0), sum(each.get("type") != "usb" for each in hostdevs))


def read_progress(root: Path, domain: str, proc: Path = Path("/proc")) -> Progress | None:
    """Read the progress of the domain's QEMU in the embedded driver in `root`; None before QEMU runs."""
    try:
        process = proc / str(int((root / "run" / "qemu" / f"{domain}.pid").read_text()))
        status = (process / "status").read_text(errors="replace")
    except (OSError, ValueError):
        return None
    sizes = {name: int(kib) << 10 for name, kib in re.findall(r"^(\w+):\s+(\d{1,15}) kB$", status, re.MULTILINE)}
    return Progress(
        memory=sum(sizes.get(name, 0) for name in _RESIDENT),
        pinned=max(sizes.get(name, 0) for name in _PINNED),
        devices=_devices(process / "fd"),
    )


def words(progress: Progress | None, wanted: Wanted) -> str:
    """Return the progress as the log shows it after the domain's name."""
    if progress is None:
        return "libvirt prepares QEMU"
    memory = f"{_shown(progress.memory)} of {_shown(wanted.memory)} GiB of memory are there"
    if not wanted.devices:
        return memory
    devices = "" if progress.devices is None else f", {progress.devices} of {wanted.devices} devices open"
    return f"{memory}, {_shown(progress.pinned)} pinned{devices}"


def _shown(size: int) -> str:
    return f"{size / _GIB:.1f}"


def _devices(descriptors: Path) -> int | None:
    try:
        return sum(str(entry.readlink()) == _DEVICE for entry in descriptors.iterdir())
    except OSError:  # it is another user's, or has ended
        return None
