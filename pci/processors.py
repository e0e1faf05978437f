"""The node's CPUs as frozen values, and the kernel's notation for a list of CPUs; pci.sysfs.processors reads them."""

import re
from dataclasses import dataclass

#: More than any kernel is built for (CONFIG_NR_CPUS), and few enough to write down.
_MOST_CPUS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class NUMANode:
    """A NUMA node: its CPUs, ascending, and the distance to each node, itself included, as (node, distance)."""

    id: int
    cpus: tuple[int, ...]
    distances: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Processors:
    """The NUMA nodes by number, and the cores, each as the CPUs that are its threads; both empty if unknown."""

    nodes: tuple[NUMANode, ...] = ()
    cores: tuple[tuple[int, ...], ...] = ()

    def node_of(self, numa_node: int | None) -> int | None:
        """Return the NUMA node of a device whose file has this `numa_node`; firmware need not name the only node."""
        return self.nodes[0].id if numa_node is None and len(self.nodes) == 1 else numa_node


UNKNOWN = Processors()


def parse_cpulist(text: str) -> tuple[int, ...]:
    """Return the CPUs of a list as the kernel writes it, `0-3,8`, ascending; ValueError for any other text.

    cpuset(7), "List format". The kernel writes an empty line for no CPU.
    """
    cpus: set[int] = set()
    room = _MOST_CPUS
    for part in text.split(",") if text else ():
        match = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", part, re.ASCII)
        if match is None:
            raise ValueError(f"{text[:80]!r} is no list of CPUs")
        first, last = int(match[1]), int(match[2] or match[1])
        room -= last - first + 1
        if last < first or last >= _MOST_CPUS or room < 0:
            raise ValueError(f"{text[:80]!r}: {part} is no range of CPUs below {_MOST_CPUS}")
        cpus.update(range(first, last + 1))
    return tuple(sorted(cpus))


def cpulist(cpus: tuple[int, ...]) -> str:
    """Write ascending CPUs as the kernel writes a list of them."""
    ranges: list[list[int]] = []
    for cpu in cpus:
        if ranges and ranges[-1][-1] == cpu - 1:
            ranges[-1][1:] = [cpu]
        else:
            ranges.append([cpu])
    return ",".join("-".join(map(str, ends)) for ends in ranges)
