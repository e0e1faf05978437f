"""<numa> and <numatune>: the guest's NUMA cells, and the host's nodes that their memory is of."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.cpus.pinning import Cell
from pci.processors import cpulist


def numa(cells: tuple[Cell, ...]) -> list[Element]:
    """Return the <numa> of <cpu>, if there are cells."""
    return [E.numa(*(_cell(number, cell) for number, cell in enumerate(cells)))] if cells else []


def numatune(cells: tuple[Cell, ...]) -> list[Element]:
    """Return <numatune>, if the memory of some cell is bound to a node."""
    bound = [(number, cell.node) for number, cell in enumerate(cells) if cell.is_bound and cell.node is not None]
    if not bound:
        return []
    nodes = cpulist(tuple(node for _, node in bound))
    memnodes = (E.memnode(cellid=str(number), mode="strict", nodeset=str(node)) for number, node in bound)
    return [E.numatune(E.memory(mode="strict", nodeset=nodes), *memnodes)]


def _cell(number: int, cell: Cell) -> Element:
    cpus = {"cpus": cpulist(cell.vcpus)} if cell.vcpus else {}
    element = E.cell(id=str(number), **cpus, memory=str(cell.memory), unit="b")
    siblings = [E.sibling(id=str(other), value=str(distance)) for other, distance in enumerate(cell.distances)]
    if siblings:
        element.append(E.distances(*siblings))
    return element
