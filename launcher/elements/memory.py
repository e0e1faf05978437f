"""The guest's memory: how much, and what it is made of."""

from lxml.etree import _Element as Element

from launcher.elements.element import E
from launcher.errors import UserError
from launcher.manifest import sizes
from launcher.manifest.memory import Hugepages
from launcher.manifest.spec import Domain, VirtualMachineInstance
from launcher.pinning import Cell


def guest_memory(domain: Domain) -> int:
    """In bytes; UserError where the manifest says nothing of it."""
    memory = sizes.guest_memory(domain.memory, domain.resources)
    if not memory:
        raise UserError(
            "the manifest gives the guest no memory; expected domain.memory.guest or domain.resources.requests.memory"
        )
    return memory


def is_memfd(vmi: VirtualMachineInstance) -> bool:
    """Whether memory comes from memfd: hugepages, unless the annotation kubevirt.io/memfd says no.

    For KubeVirt also with passt and virtiofs, and shared, since vhost-user maps it. Nothing here speaks vhost-user.
    """
    return vmi.spec.domain.memory.hugepages is not None and vmi.metadata.annotations.memfd


def memory(vmi: VirtualMachineInstance, cells: tuple[Cell, ...]) -> list[Element]:
    """<memoryBacking>, where there is anything to say about it."""
    domain = vmi.spec.domain
    element = E.memoryBacking()
    if domain.memory.hugepages is not None:
        element.append(_hugepages(domain.memory.hugepages, cells))
    if domain.cpu.realtime is not None:
        element.append(E.nosharepages())
    if is_memfd(vmi):
        element.append(E.source(type="memfd"))
    if domain.cpu.passes_numa_through:
        element.append(E.allocation(mode="immediate"))
    return [element] if len(element) else []


def _hugepages(said: Hugepages, cells: tuple[Cell, ...]) -> Element:
    size = {"size": str(said.pageSize), "unit": "b"}
    bound = [number for number, cell in enumerate(cells) if cell.is_bound]
    return E.hugepages(*(E.page(nodeset=str(number), **size) for number in bound) if bound else (E.page(**size),))
