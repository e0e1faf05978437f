"""Reads the node's CPUs: the CPUs of each NUMA node, the distances between nodes, the threads of each core.

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
    line = text(sys, path)
    distances = re.findall("[0-9]+", line or "", re.ASCII)
    if line is not None and len(distances) != len(numbers):
        raise Unreadable(path, f"holds {line[:80]!r}; expected {len(numbers)} distances")
    return NUMANode(
        id=number,
        cpus=_cpus(sys, f"{NODES}/node{number}/cpulist") or (),
        distances=tuple(zip(numbers, map(int, distances), strict=False)),
    )


def _cpus(sys: Path, path: str) -> tuple[int, ...] | None:
    cpus = text(sys, path)
    try:
        return None if cpus is None else parse_cpulist(cpus)
    except ValueError as error:
        raise Unreadable(path, str(error)) from None


def _numbers(sys: Path, directory: str, prefix: str) -> list[int]:
    """Return the numbers of the entries that are called node0, node1, ..., ascending."""
    matches = (re.fullmatch(f"{prefix}([0-9]{{1,5}})", name, re.ASCII) for name in names(sys, directory))
    return sorted(int(match[1]) for match in matches if match)
