"""The node's CPUs: which of them a NUMA node has, how far the nodes are from each other, which are threads of one core.

The files are those of the kernel's Documentation/ABI: stable/sysfs-devices-node, stable/sysfs-devices-system-cpu.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from pci.attribute import Unreadable, names, text

NODES = "devices/system/node"
NODE_FILES = ("cpulist", "distance")
CPUS = "devices/system/cpu"
SIBLINGS = "topology/thread_siblings_list"  # below a CPU; one that is offline has none

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


def read_processors(sys: Path) -> Processors:
    """Read them from the tree that stands for /sys; Unreadable names the file that is not what it should be."""
    cores = {cpus for number in _numbers(sys, CPUS, "cpu") if (cpus := _cpus(sys, f"{CPUS}/cpu{number}/{SIBLINGS}"))}
    numbers = _numbers(sys, NODES, "node")
    nodes = tuple(_read_node(sys, number, numbers) for number in numbers)
    if not nodes and cores:
        # A kernel without NUMA: one node that has everything, as for libvirt.
        nodes = (NUMANode(id=0, cpus=tuple(sorted(cpu for core in cores for cpu in core))),)
    return Processors(nodes=nodes, cores=tuple(sorted(cores)))


def _read_node(sys: Path, number: int, numbers: list[int]) -> NUMANode:
    path = f"{NODES}/node{number}/distance"
    said = text(sys, path)
    distances = re.findall("[0-9]+", said or "", re.ASCII)
    if said is not None and len(distances) != len(numbers):
        raise Unreadable(path, f"holds {said[:80]!r}; expected {len(numbers)} distances")
    return NUMANode(
        id=number,
        cpus=_cpus(sys, f"{NODES}/node{number}/cpulist") or (),
        distances=tuple(zip(numbers, map(int, distances), strict=False)),
    )


def _cpus(sys: Path, path: str) -> tuple[int, ...] | None:
    said = text(sys, path)
    try:
        return None if said is None else parse_cpulist(said)
    except ValueError as error:
        raise Unreadable(path, str(error)) from None


def _numbers(sys: Path, directory: str, prefix: str) -> list[int]:
    """The numbers of the entries that are called node0, node1, ..., ascending."""
    found = (re.fullmatch(f"{prefix}([0-9]{{1,5}})", name, re.ASCII) for name in names(sys, directory))
    return sorted(int(match[1]) for match in found if match)
