"""How far apart two devices are: the classes in which `nvidia-smi topo -m` counts, on a host as in a guest."""

from dataclasses import dataclass
from enum import StrEnum

from pci.address import PCIAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where a device sits, in a host or a guest: NUMA node, root complex and bridges as in pci.host.Function."""

    numa_node: int | None
    root: str
    bridges: tuple[PCIAddress, ...]


class Distance(StrEnum):
    """How far apart two devices are, from near to far; the value is the word for it."""

    SWITCH = "same switch"  # traffic between them passes no root complex
    ROOT = "same root"
    NODE = "same node"  # two root complexes of one NUMA node
    OTHER_NODE = "other node"


def distance(one: Location, other: Location) -> Distance:
    """Return how far apart two devices of one machine are.

    As in pci.topology, a switch is a bridge below a root port, with bridges behind it. Switches in a row below one root
    port count as one. A root complex of unknown NUMA node counts as on a node of its own.
    """
    if one.root == other.root:
        below_switches = min(len(one.bridges), len(other.bridges)) > 2
        return Distance.SWITCH if below_switches and one.bridges[:2] == other.bridges[:2] else Distance.ROOT
    if one.numa_node is not None and one.numa_node == other.numa_node:
        return Distance.NODE
    return Distance.OTHER_NODE


class Way(StrEnum):
    """The abbreviations of `nvidia-smi topo -m`, which tells one switch from several in a row."""

    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SYS = "SYS"


#: What each abbreviation means.
WORDS = {
    Way.PIX: "same switch",
    Way.PXB: "same switch, over several in a row",
    Way.PHB: "same root",
    Way.NODE: "same node",
    Way.SYS: "other node",
}


def way(one: Location, other: Location) -> Way:
    """Return how far apart two devices of one machine are, in nvidia-smi's classes."""
    far = distance(one, other)
    if far is Distance.SWITCH:
        # Each device is behind a port of its own, of the same switch.
        return Way.PIX if one.bridges[:-1] == other.bridges[:-1] else Way.PXB
    return {Distance.ROOT: Way.PHB, Distance.NODE: Way.NODE, Distance.OTHER_NODE: Way.SYS}[far]
