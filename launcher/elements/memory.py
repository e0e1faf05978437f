"""The guest's memory: how much, and what it is made of."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.cpus.pinning import Cell
from launcher.guest import Guest


def memory(guest: Guest, cells: tuple[Cell, ...]) -> list[Element]:
    """Return <memoryBacking>, if there is anything to say about it."""
    element = E.memoryBacking()
    if guest.page is not None:
        element.append(_hugepages(guest.page, cells))
    if guest.realtime:
        element.append(E.nosharepages())
    if guest.is_memfd:
        element.append(E.source(type="memfd"))
    if guest.is_shared:
        element.append(E.access(mode="shared"))
    if guest.passes_numa_through:
        element.append(E.allocation(mode="immediate"))
    return [element] if len(element) else []


def _hugepages(page: int, cells: tuple[Cell, ...]) -> Element:
    size = {"size": str(page), "unit": "b"}
    bound = [number for number, cell in enumerate(cells) if cell.is_bound]
    return E.hugepages(*(E.page(nodeset=str(number), **size) for number in bound) if bound else (E.page(**size),))
