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
from pci.sysfs.attribute import Unreadable, text

#: What the kernel calls the sums of each kind (Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats).
SEVERITIES: Mapping[str, str] = {"correctable": "ERR_COR", "nonfatal": "ERR_NONFATAL", "fatal": "ERR_FATAL"}
#: A container's own cgroup, of version 2 or 1.
_MEMORY = ("fs/cgroup/memory.current", "fs/cgroup/memory/memory.usage_in_bytes")


@dataclass(frozen=True)
class Pod:
    """`resident`: bytes in memory of each of the launcher's processes. `container`: bytes that count for its limit,
    None outside of one. `errors`: by function and severity, since the node has booted; without AER there are none."""

    resident: Mapping[str, int]
    container: int | None
    errors: Mapping[tuple[PCIAddress, str], int]


def seen(sys: Path, proc: Path, functions: Iterable[PCIAddress]) -> Pod:
    """Read what the kernel tells now."""
    processes = {"worker": os.getpid(), "supervisor": os.getppid()}
    resident = {name: size for name, pid in processes.items() if (size := _resident(proc, pid)) is not None}
    used = (_number(sys, path, r"(\d+)") for path in _MEMORY)
    found = {
        (function, severity): _number(
            sys, f"bus/pci/devices/{function}/aer_dev_{severity}", rf"(?s:.*)^TOTAL_{total} (\d+)"
        )
        for function in functions
        for severity, total in SEVERITIES.items()
    }
    errors = {key: number for key, number in found.items() if number is not None}
    return Pod(resident, next((number for number in used if number is not None), None), errors)


def _resident(proc: Path, pid: int) -> int | None:
    with suppress(OSError):
        found = re.search(r"^VmRSS:\s+(\d+) kB$", (proc / str(pid) / "status").read_text(), re.MULTILINE)
        return None if found is None else int(found[1]) << 10
    return None


def _number(sys: Path, path: str, pattern: str) -> int | None:
    """Return the number in a file; None if there is none."""
    with suppress(Unreadable):
        found = re.fullmatch(pattern, text(sys, path) or "", re.MULTILINE)
        return None if found is None else int(found[1])
    return None
