"""The pod's CPUs, from a flag, from cgroups or assumed; and the node's cores, NUMA nodes and address bits."""

import re
from pathlib import Path

from launcher.vm.guest import Guest
from pci.processors import UNKNOWN, NUMANode, Processors, parse_cpulist
from pci.sysfs.attribute import Unreadable, text
from pci.sysfs.processors import read_processors
from program.errors import Refusal, UserError

#: A container's own cgroup, version 2 and version 1 (cgroups(7), cpuset(7)).
_CPUSETS = ("fs/cgroup/cpuset.cpus.effective", "fs/cgroup/cpuset/cpuset.cpus")


def cpuset_of_flag(cpuset: str | None) -> tuple[int, ...] | None:
    """Read the CPUs of --cpuset, ascending; UserError if it is no list of CPUs."""
    if cpuset is None:
        return None
    try:
        cpus = parse_cpulist(cpuset)
    except ValueError as error:
        raise UserError(
            "--cpuset", str(error), "expected the pod's CPUs as the kernel lists them, like 0-3,8"
        ) from error
    if not cpus:
        raise UserError("--cpuset", "is empty", "expected at least one CPU, like 0-3,8")
    return cpus


def assumed(guest: Guest, cpus: tuple[int, ...] | None, node: Processors) -> tuple[tuple[int, ...], Processors]:
    """Return the pod's CPUs and its node's processors as they may be, for a guest with CPUs of its own.

    CPUs that are None are the node's first ones, in whole cores. A node that has other CPUs, or too few, is one NUMA
    node with the pod's CPUs.
    """
    core_of = {cpu: core for core in node.cores for cpu in core}
    known = tuple(dict.fromkeys(cpu for each in node.nodes for one in each.cpus for cpu in core_of.get(one, (one,))))
    if cpus is None:
        is_enough = len(known) >= guest.pod_cpus
        cpus = tuple(sorted(known[: guest.pod_cpus])) if is_enough else tuple(range(guest.pod_cpus))
    if set(cpus) <= set(known):
        return cpus, node
    threads = guest.cpus.threads
    cores = tuple(cpus[first : first + threads] for first in range(0, len(cpus), threads))
    return cpus, Processors(nodes=(NUMANode(id=0, cpus=cpus),), cores=cores)


def cpuset_of_pod(sys: Path) -> tuple[int, ...]:
    """Read the CPUs of this process's container; Refusal if its cgroup has no list of them."""
    try:
        for path in _CPUSETS:
            if cpuset := text(sys, path):
                return parse_cpulist(cpuset)
    except (Unreadable, ValueError) as error:
        raise Refusal(sys, f"cannot read the pod's CPUs: {error}", "for a bug report: gpu-plugin record DIR") from error
    raise Refusal(
        sys,
        f"cannot read the pod's CPUs: expected {' or '.join(_CPUSETS)}",
        "dedicatedCpuPlacement needs the cpuset controller and its file system in the container",
    )


def address_bits(cpuinfo: Path) -> int | None:
    """Read the bits of the CPUs' physical addresses from /proc/cpuinfo; None if they are not there."""
    try:
        content = cpuinfo.read_text(errors="replace")
    except OSError:
        return None
    bits = re.search(r"^address sizes\s*: ([0-9]{1,3}) bits physical", content, re.MULTILINE)
    return int(bits[1]) if bits else None


def processors_for(guest: Guest, sys: Path | None) -> Processors:
    """Read the node's processors if CPUs or cards of the guest have a place on them; Refusal if they cannot be read."""
    has_place = guest.has_own_cpus or guest.topology != "none"
    return processors_of(sys) if has_place and sys is not None else UNKNOWN


def processors_of(sys: Path) -> Processors:
    """Read the node's processors from the tree that stands for /sys; Refusal if it cannot be read."""
    try:
        return read_processors(sys)
    except Unreadable as error:
        raise Refusal(sys, str(error), "for a bug report: gpu-plugin record DIR") from error
