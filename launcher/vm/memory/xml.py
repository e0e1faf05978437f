"""<memoryBacking>: what the guest's memory is made of."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.vm.cpu.guest import Cell
from launcher.vm.guest import Guest


def memory(guest: Guest, cells: tuple[Cell, ...], threads: int) -> list[Element]:
    """Return <memoryBacking>, if there is anything to say about it. This many `threads` allocate all of the memory
    before the start."""
    element = E.memoryBacking()
    if guest.page is not None:
        size = {"size": str(guest.page), "unit": "b"}
        bound = [number for number, cell in enumerate(cells) if cell.is_bound]
        pages = [E.page(nodeset=str(number), **size) for number in bound] or [E.page(**size)]
        element.append(E.hugepages(*pages))
    if guest.realtime:
        element.append(E.nosharepages())
    if guest.is_memfd:
        element.append(E.source(type="memfd"))
    if guest.is_shared:
        element.append(E.access(mode="shared"))
    if threads > 1:
        element.append(E.allocation(mode="immediate", threads=str(threads)))
    elif guest.passes_numa_through:
        element.append(E.allocation(mode="immediate"))
    return [element] if len(element) else []
