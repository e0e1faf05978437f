"""Samples of the domain from libvirt, with the names that its XML gives to its parts; and of the pod from the kernel:
the memory of the launcher's processes and of the container, and PCI Express errors of the guest's devices.

Reading the kernel's files never waits: they are counters, and no driver or device is asked.
"""

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from launcher.runtime import guest, operations
from launcher.runtime.hostdevs import Hostdev, hostdevs_in
from launcher.runtime.operations import VMState
from pci.address import PCIAddress, address_or_none
from pci.host import Errors
from pci.sysfs.attribute import Unreadable, number
from pci.sysfs.pcie import read_errors

_OURS = "ua-"  # the beginning of a name of the manifest's, as libvirt has it


@dataclass(frozen=True)
class DomainSample:
    """`statistics`: libvirt's own, by libvirt's names (guest.statistics). `agent`: whether the guest's agent is
    connected, None without a channel for one."""

    state: VMState
    statistics: Mapping[str, Any]
    agent: bool | None


@dataclass(frozen=True)
class DomainNames:
    """The manifest's names of disks and network cards by libvirt's (`target`), and the host devices of the guest."""

    targets: Mapping[str, str]
    devices: tuple[Hostdev, ...]

    @property
    def functions(self) -> tuple[PCIAddress, ...]:
        """Return the host's addresses of the PCI devices: a mediated device has none."""
        hosts = (address_or_none(device.host) for device in self.devices)
        return tuple(sorted(host for host in hosts if host is not None))


def sample_domain(domain: Any) -> DomainSample:
    """Ask libvirt, which may answer late or never; Refusal if it refuses."""
    return DomainSample(operations.state(domain), guest.statistics(domain), operations.has_agent(domain))


def names_in(xml: str, numbers: Mapping[int, int]) -> DomainNames:
    """Return the names in a domain of ours; `numbers` as of hostdevs_in()."""
    tree, targets = ElementTree.fromstring(xml), dict[str, str]()  # noqa: S314 it is ours
    for element in (*tree.iterfind("devices/disk"), *tree.iterfind("devices/interface")):
        target, alias = element.find("target"), element.find("alias")
        if target is not None and alias is not None:
            targets[target.get("dev", "")] = alias.get("name", "").removeprefix(_OURS)
    return DomainNames(targets, hostdevs_in(tree, numbers))


#: A container's own cgroup, of version 2 or 1.
_MEMORY = ("fs/cgroup/memory.current", "fs/cgroup/memory/memory.usage_in_bytes")


@dataclass(frozen=True)
class PodSample:
    """`resident`: bytes in memory of each of the launcher's processes. `container`: bytes that count for the
    container's limit, None outside a container. `errors`: by function, without functions that lack AER."""

    resident: Mapping[str, int]
    container: int | None
    errors: Mapping[PCIAddress, Errors]


def sample_pod(sys: Path, proc: Path, functions: Iterable[PCIAddress]) -> PodSample:
    """Read the kernel's present numbers."""
    processes = {"worker": os.getpid(), "supervisor": os.getppid()}
    resident = {name: size for name, pid in processes.items() if (size := _resident(proc, pid)) is not None}
    used = [size for path in _MEMORY if (size := _number(sys, path)) is not None]
    errors = {function: counts for function in functions if (counts := _errors(sys, function)) is not None}
    return PodSample(resident, next(iter(used), None), errors)


def _errors(sys: Path, function: PCIAddress) -> Errors | None:
    with suppress(Unreadable):
        return read_errors(sys, function)
    return None


def _resident(proc: Path, pid: int) -> int | None:
    with suppress(OSError):
        match = re.search(r"^VmRSS:\s+(\d+) kB$", (proc / str(pid) / "status").read_text(), re.MULTILINE)
        return None if match is None else int(match[1]) << 10
    return None


def _number(sys: Path, path: str) -> int | None:
    with suppress(Unreadable):
        return number(sys, path, "[0-9]{1,20}", "a number of bytes")
    return None
