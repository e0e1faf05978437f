"""The uses of a function: parts in sysfs that are open, mounted, up or in a guest, and pods and claims that have it."""

import errno
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pci.address import PCIAddress
from pci.functions import is_vfio_driver
from pci.host import Function
from pci.sysfs.attribute import names, text
from pci.sysfs.parts import Part, read_parts
from plugin.changes.processes import DeviceNumber, Processes, number_of
from plugin.changes.users import Users
from program.problem import summary

_IFF_UP = 0x1  # include/uapi/linux/if.h
_NVIDIA_MAJOR = 195  # Documentation/admin-guide/devices.txt
_VFIO_GROUPS = "class/vfio"
_NAMED = 3  # processes that have one file open


@dataclass(frozen=True, slots=True)
class Use:
    """A use of a function, in words. `passing`: by a process, which can be stopped. By any other use the function is
    the node's own (its console, its disk, its network), or a pod's or a claim's. `is_certain` is False if it may be no
    use of this function."""

    what: str
    passing: bool
    is_certain: bool = True


def given_to(users: Users, address: PCIAddress) -> tuple[Use, ...]:
    """Return the use of a function by each pod and claim that it was given to."""
    names = users.of([address])
    return tuple(Use(f"given to {user}", passing=False, is_certain=is_certain) for user, is_certain in names.items())


def uses(sys: Path, dev: Path, processes: Processes, function: Function) -> tuple[Use, ...]:
    """Return every visible use of a function, in a fixed order; Unreadable if its sysfs cannot be read.

    `sys` and `dev` stand for /sys and /dev. A disk is opened for a moment, for reading and exclusively: the kernel
    refuses that if a file system, RAID or ZFS has it, in any mount namespace or pool.
    """
    parts = tuple(read_parts(sys, function.address))
    own = [what for part in parts for what in _own_uses(sys, processes, part)]
    if not own:
        own = [claim for part in parts if (claim := _claim(sys, dev, part)) is not None]
    nodes = [(part.node, _number(part)) for part in parts if part.node is not None]
    nodes += _nodes_elsewhere(sys, dev, processes, function)
    opened = [
        f"/dev/{node} is open in {summary(processes.openers[number], _NAMED)}"
        for node, number in nodes
        if number is not None and number in processes.openers
    ]
    return (*(Use(what, passing=False) for what in own), *(Use(what, passing=True) for what in opened))


def _own_uses(sys: Path, processes: Processes, part: Part) -> Iterator[str]:
    if part.subsystem == "graphics":
        yield f"the console may be on framebuffer {part.name} (none is made with drm_kms_helper.fbdev_emulation=0)"
    elif part.subsystem == "net":
        flags = text(sys, f"{part.path}/flags")
        if flags is None:
            yield "its network interface is in another network namespace"
        elif not re.fullmatch("0x[0-9a-f]{1,8}", flags) or int(flags, 16) & _IFF_UP:
            yield f"network interface {part.name} is up"
    elif part.subsystem == "block" and part.node is not None:
        node = f"/dev/{part.node}"
        mount_point = processes.mounts.get(text(sys, f"{part.path}/dev") or "") or processes.mounts.get(node)
        if mount_point is not None:
            yield f"{node} is mounted on {mount_point}"
        if node in processes.swaps:
            yield f"{node} is swap"
        for holder in names(sys, f"{part.path}/holders"):
            yield f"{node} is part of {holder}"


def _number(part: Part) -> DeviceNumber | None:
    return None if part.number is None else DeviceNumber(part.subsystem == "block", *part.number)


def _nodes_elsewhere(
    sys: Path, dev: Path, processes: Processes, function: Function
) -> list[tuple[str, DeviceNumber | None]]:
    """Return the device files of a function that are not below it in sysfs, and their numbers."""
    nodes: list[tuple[str, DeviceNumber | None]] = []
    if (minor := processes.nvidia_minors.get(str(function.address))) is not None:
        nodes.append((f"nvidia{minor}", _in_dev(dev, f"nvidia{minor}") or DeviceNumber(False, _NVIDIA_MAJOR, minor)))
    if is_vfio_driver(function.driver):
        for name in (f"{function.iommu_group}", f"noiommu-{function.iommu_group}"):
            number = re.fullmatch("([0-9]+):([0-9]+)", text(sys, f"{_VFIO_GROUPS}/{name}/dev") or "", re.ASCII)
            known = None if number is None else DeviceNumber(False, int(number[1]), int(number[2]))
            nodes.append((f"vfio/{name}", known or _in_dev(dev, f"vfio/{name}")))
    return nodes


def _in_dev(dev: Path, node: str) -> DeviceNumber | None:
    try:
        return number_of(dev / node)
    except OSError:
        return None


def _claim(sys: Path, dev: Path, part: Part) -> str | None:
    """Return why the kernel has a disk for itself, by an exclusive open, or why that cannot be tried; else None."""
    if part.subsystem != "block" or part.node is None or text(sys, f"{part.path}/partition") is not None:
        return None  # the whole disk answers for its partitions
    try:
        node = dev / part.node
        if stat.S_ISBLK(node.stat().st_mode):
            os.close(os.open(node, os.O_RDONLY | os.O_EXCL | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.EBUSY:
            return f"/dev/{part.node} is claimed by the kernel"
        if error.errno in (errno.EPERM, errno.EACCES, errno.ENOENT):
            return f"/dev/{part.node} cannot be asked from here whether it is in use; bind disks on the node itself"
    return None
