"""What the kernel tells of the pod: the memory of the launcher's processes and of the container, and the errors on PCI
Express of the guest's devices.

None of these files waits: the kernel has counted what is in them, and no driver or device is asked.
"""

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pci.address import PCIAddress
from pci.host import Errors
from pci.sysfs.attribute import Unreadable, number
from pci.sysfs.pcie import read_errors

#: A container's own cgroup, of version 2 or 1.
_MEMORY = ("fs/cgroup/memory.current", "fs/cgroup/memory/memory.usage_in_bytes")


@dataclass(frozen=True)
class PodSample:
    """`resident`: bytes in memory of each of the launcher's processes. `container`: bytes that count for its limit,
    None outside of one. `errors`: by function, without those that have no AER."""

    resident: Mapping[str, int]
    container: int | None
    errors: Mapping[PCIAddress, Errors]


def seen(sys: Path, proc: Path, functions: Iterable[PCIAddress]) -> PodSample:
    """Read what the kernel tells now."""
    processes = {"worker": os.getpid(), "supervisor": os.getppid()}
    resident = {name: size for name, pid in processes.items() if (size := _resident(proc, pid)) is not None}
    used = [size for path in _MEMORY if (size := _number(sys, path)) is not None]
    errors = {function: found for function in functions if (found := _errors(sys, function)) is not None}
    return PodSample(resident, next(iter(used), None), errors)


def _errors(sys: Path, function: PCIAddress) -> Errors | None:
    with suppress(Unreadable):
        return read_errors(sys, function)
    return None


def _resident(proc: Path, pid: int) -> int | None:
    with suppress(OSError):
        found = re.search(r"^VmRSS:\s+(\d+) kB$", (proc / str(pid) / "status").read_text(), re.MULTILINE)
        return None if found is None else int(found[1]) << 10
    return None


def _number(sys: Path, path: str) -> int | None:
    with suppress(Unreadable):
        return number(sys, path, "[0-9]{1,20}", "a number of bytes")
    return None
