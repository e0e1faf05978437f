"""The tree of devices below a host bridge: root ports, switches and other bridges.

All bridges have the class 0604, so their kind follows from their place: the first below a host bridge is a root port; a
bridge below it with bridges behind it is a switch's upstream port, and those are its downstream ports (PCI Express Base
Specification, "Switch"). A switch may have several levels of ports: a bridge with the vendor and device of the level
above belongs to the same switch, so two equal switches in a row count as one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from pci.address import PCIAddress

Leaf = TypeVar("Leaf")
_Chain = tuple[PCIAddress, ...]


class BridgeKind(StrEnum):
    """What a bridge is; the value is the word for it."""

    ROOT_PORT = "root port"
    SWITCH = "switch"
    BRIDGE = "bridge"


@dataclass(frozen=True, slots=True)
class Twig(Generic[Leaf]):
    """A leaf, and the switch's downstream port that it sits behind; None if it is not behind a switch."""

    leaf: Leaf
    port: PCIAddress | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch(Generic[Leaf]):
    """A root port, a switch or another bridge, and what hangs on it.

    `ports` are its own functions with their level, depth first: a switch's upstream port and the ports between its
    levels. A downstream port is the `port` of the node behind it, as in Twig. `pci_id` is that of the first function
    (`1000:c010`), None if it cannot be read.
    """

    kind: BridgeKind
    pci_id: str | None
    ports: tuple[tuple[int, PCIAddress], ...]
    port: PCIAddress | None
    below: tuple["TreeNode[Leaf]", ...]


TreeNode = Branch[Leaf] | Twig[Leaf]


def leaves(nodes: Iterable[TreeNode[Leaf]]) -> list[Leaf]:
    """Return the leaves in the order of the tree."""
    return [leaf for node in nodes for leaf in ([node.leaf] if isinstance(node, Twig) else leaves(node.below))]


def tree(places: Iterable[tuple[_Chain, Leaf]], pci_ids: Mapping[PCIAddress, str]) -> tuple[TreeNode[Leaf], ...]:
    """Return the tree below one host bridge, from the bridges above each leaf, the root port first.

    Siblings keep the order of their leaves, those without a bridge first. `pci_ids` are the known vendors and devices
    of the bridges.
    """
    direct, behind = _by_first(places)
    ports = (_single(BridgeKind.ROOT_PORT, port, rest, None, pci_ids) for port, rest in behind.items())
    return (*(Twig(leaf, None) for leaf in direct), *ports)


def _single(
    kind: BridgeKind,
    bridge: PCIAddress,
    places: Iterable[tuple[_Chain, Leaf]],
    port: PCIAddress | None,
    pci_ids: Mapping[PCIAddress, str],
) -> Branch[Leaf]:
    """Return a bridge by itself, and what is behind it."""
    direct, behind = _by_first(places)
    bridges = (_branch(further, rest, None, pci_ids) for further, rest in behind.items())
    return Branch(
        kind=kind,
        pci_id=pci_ids.get(bridge),
        ports=((0, bridge),),
        port=port,
        below=(*(Twig(leaf, None) for leaf in direct), *bridges),
    )


def _branch(
    bridge: PCIAddress,
    places: list[tuple[_Chain, Leaf]],
    port: PCIAddress | None,
    pci_ids: Mapping[PCIAddress, str],
) -> Branch[Leaf]:
    """Return the subtree that starts at a bridge other than a root port; `port` is the port of the switch above it."""
    if not _has_bridges(places):
        return _single(BridgeKind.BRIDGE, bridge, places, port, pci_ids)
    ports, below = _switch(bridge, places, 0, pci_ids)
    return Branch(kind=BridgeKind.SWITCH, pci_id=pci_ids.get(bridge), ports=tuple(ports), port=port, below=tuple(below))


def _switch(
    upstream: PCIAddress, places: list[tuple[_Chain, Leaf]], level: int, pci_ids: Mapping[PCIAddress, str]
) -> tuple[list[tuple[int, PCIAddress]], list[TreeNode[Leaf]]]:
    """Return the ports of a switch from this upstream port down, and what is behind them."""
    ports = [(level, upstream)]
    direct, downstream = _by_first(places)
    below: list[TreeNode[Leaf]] = [Twig(leaf, None) for leaf in direct]
    for port, rest in downstream.items():
        behind_port, inner = _by_first(rest)
        below += [Twig(leaf, port) for leaf in behind_port]
        inner_ports: list[tuple[int, PCIAddress]] = []
        for bridge, further in inner.items():
            is_same = bridge in pci_ids and pci_ids[bridge] == pci_ids.get(upstream)
            if is_same and _has_bridges(further):
                more_ports, more = _switch(bridge, further, level + 2, pci_ids)
                inner_ports += more_ports
                below += more
            else:
                below.append(_branch(bridge, further, port, pci_ids))
        if inner_ports:
            ports += [(level + 1, port), *inner_ports]
    return ports, below


def _has_bridges(places: Iterable[tuple[_Chain, Leaf]]) -> bool:
    return any(chain for chain, _ in places)


def _by_first(
    places: Iterable[tuple[_Chain, Leaf]],
) -> tuple[list[Leaf], dict[PCIAddress, list[tuple[_Chain, Leaf]]]]:
    """Return the leaves without a bridge above them, and the others by their first bridge, with the rest of their
    chain."""
    direct: list[Leaf] = []
    behind: dict[PCIAddress, list[tuple[_Chain, Leaf]]] = {}
    for chain, leaf in places:
        if chain:
            behind.setdefault(chain[0], []).append((chain[1:], leaf))
        else:
            direct.append(leaf)
    return direct, behind
