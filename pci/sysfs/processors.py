"""Reads the node's CPUs: which of them a NUMA node has, how far the nodes are apart, which are threads of one core.

The files are those of the kernel's Documentation/ABI: stable/sysfs-devices-node, stable/sysfs-devices-system-cpu.
"""

import re
from pathlib import Path

from pci.processors import NUMANode, Processors, parse_cpulist
from pci.sysfs.attribute import Unreadable, names, text

NODES = "devices/system/node"
NODE_FILES = ("cpulist", "distance")
CPUS = "devices/system/cpu"
SIBLINGS = "topology/thread_siblings_list"  # below a CPU; one that is offline has none


def read_processors(sys: Path) -> Processors:
    """Read the NUMA nodes and cores of the tree that stands for /sys; raise Unreadable if a file is malformed."""
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
