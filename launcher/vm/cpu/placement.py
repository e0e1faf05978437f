"""<cputune>, <numa>, <numatune> and <iothreads>: the host's CPUs, nodes and I/O threads that serve the guest."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.vm.cpu.guest import Cell, Pinning
from launcher.vm.guest import Guest
from pci.processors import cpulist


def placement(guest: Guest, pinned: Pinning | None, cells: tuple[Cell, ...]) -> list[Element]:
    return [*([_cputune(guest, pinned)] if pinned is not None else []), *numatune(cells)]


def _cputune(guest: Guest, pinned: Pinning) -> Element:
    element = E.cputune(*(E.vcpupin(vcpu=str(vcpu), cpuset=str(at)) for vcpu, at in enumerate(pinned.vcpus)))
    if pinned.emulator:
        element.append(E.emulatorpin(cpuset=_cpuset(pinned.emulator)))
    for thread, cpus in enumerate(pinned.iothreads, start=1):
        element.append(E.iothreadpin(iothread=str(thread), cpuset=_cpuset(cpus)))
    if guest.realtime:
        # KubeVirt's handler does it from outside, to the same end. Here libvirt does, with RLIMIT_RTPRIO.
        element.append(E.vcpusched(vcpus=cpulist(guest.realtime), scheduler="fifo", priority="1"))
    return element


def _cpuset(cpus: tuple[int, ...]) -> str:
    return cpulist(tuple(sorted(cpus)))


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


def iothreads(count: int) -> list[Element]:
    return [E.iothreads(str(count))] if count else []


def serve(driver: Element, threads: tuple[int, ...]) -> None:
    """Write into a <driver> the I/O threads that serve it; nothing if it has none."""
    if len(threads) == 1:
        driver.set("iothread", str(threads[0]))
    elif threads:
        driver.append(E.iothreads(*(E.iothread(id=str(number)) for number in threads)))
