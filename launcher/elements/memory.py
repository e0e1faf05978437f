"""The guest's memory: how much, and what it is made of."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.cpus.pinning import Cell
from launcher.manifest.memory import Hugepages
from launcher.manifest.spec import VirtualMachineInstance


def memory(vmi: VirtualMachineInstance, cells: tuple[Cell, ...]) -> list[Element]:
    """Return <memoryBacking>, if there is anything to say about it."""
    domain = vmi.spec.domain
    element = E.memoryBacking()
    if domain.memory.hugepages is not None:
        element.append(_hugepages(domain.memory.hugepages, cells))
    if domain.cpu.realtime is not None:
        element.append(E.nosharepages())
    if vmi.is_memfd:
        element.append(E.source(type="memfd"))
    if vmi.is_shared:
        element.append(E.access(mode="shared"))
    if domain.cpu.passes_numa_through:
        element.append(E.allocation(mode="immediate"))
    return [element] if len(element) else []


def _hugepages(hugepages: Hugepages, cells: tuple[Cell, ...]) -> Element:
    size = {"size": str(hugepages.pageSize), "unit": "b"}
    bound = [number for number, cell in enumerate(cells) if cell.is_bound]
    return E.hugepages(*(E.page(nodeset=str(number), **size) for number in bound) if bound else (E.page(**size),))
