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
    """The NUMA nodes by number, and the cores, each as the CPUs that are its threads; neither where sysfs has none."""

    nodes: tuple[NUMANode, ...] = ()
    cores: tuple[tuple[int, ...], ...] = ()

    def node_of(self, said: int | None) -> int | None:
        """The node of a device, by what its file numa_node says: firmware of a machine that has one need not say it."""
        return self.nodes[0].id if said is None and len(self.nodes) == 1 else said


UNKNOWN = Processors()


def parse_cpulist(text: str) -> tuple[int, ...]:
    """The CPUs of a list as the kernel writes it, `0-3,8`, ascending; ValueError for any other text.

    cpuset(7), "List format". No CPU is for the kernel an empty line.
    """
    cpus: set[int] = set()
    room = _MOST_CPUS
    for part in text.split(",") if text else ():
        match = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", part, re.ASCII)
        if match is None:
            raise ValueError(f"{text[:80]!r} is no list of CPUs; expected one like 0-3,8")
        first, last = int(match[1]), int(match[2] or match[1])
        room -= last - first + 1
        if last < first or last >= _MOST_CPUS or room < 0:
            raise ValueError(f"{text[:80]!r}: {part} is no range of CPUs; expected one like 0-3, below {_MOST_CPUS}")
        cpus.update(range(first, last + 1))
    return tuple(sorted(cpus))


def cpulist(cpus: tuple[int, ...]) -> str:
    """Ascending CPUs as such a list."""
    ranges: list[list[int]] = []
    for cpu in cpus:
        if ranges and ranges[-1][-1] == cpu - 1:
            ranges[-1][1:] = [cpu]
        else:
            ranges.append([cpu])
    return ",".join("-".join(map(str, ends)) for ends in ranges)
