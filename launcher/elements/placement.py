"""<cputune> and <numatune>: which of the host's CPUs and nodes serve which of the guest's."""

from lxml.etree import _Element as Element

from launcher.elements import cpu, iothreads
from launcher.elements.element import E
from launcher.elements.memory import guest_memory, is_memfd
from launcher.errors import UserError
from launcher.facts import Facts
from launcher.manifest.spec import VirtualMachineInstance
from launcher.pinning import Cell, Pinning, Wanted, cells, cells_for, pin
from pci.processors import cpulist


def pinning(vmi: VirtualMachineInstance, facts: Facts) -> Pinning | None:
    """The CPUs that are the guest's alone; None where it has none. UserError where they are not known, or too few."""
    domain = vmi.spec.domain
    if not domain.cpu.dedicatedCpuPlacement:
        return None
    if facts.cpus is None:
        raise UserError(
            "spec.domain.cpu.dedicatedCpuPlacement: the pod's CPUs are not known here; "
            "expected --cpuset, with what the pod has, like 0-3,8"
        )
    if not facts.processors.nodes:
        raise UserError(
            "spec.domain.cpu.dedicatedCpuPlacement: the node's cores and NUMA nodes are not known here; "
            "expected --sysfs, with devices/system/cpu and devices/system/node"
        )
    sockets, cores, threads = cpu.topology(domain)
    pool = iothreads.supplemental(domain)
    wanted = Wanted(
        cores=sockets * cores,
        threads=threads,
        emulator=_emulator_threads(vmi, cpu.vcpus(domain) + pool) if domain.cpu.isolateEmulatorThread else 0,
        pool=pool,
        iothreads=0 if pool else iothreads.count(vmi),
        within_nodes=domain.cpu.passes_numa_through,
    )
    return pin(wanted, facts.cpus, facts.processors)


def guest_cells(vmi: VirtualMachineInstance, pinned: Pinning | None, facts: Facts) -> tuple[Cell, ...]:
    """The guest's NUMA cells: the host's nodes, where they are passed through; else one where libvirt wants one for
    memory from memfd, as KubeVirt writes it; else none."""
    domain = vmi.spec.domain
    hugepages = domain.memory.hugepages
    if domain.cpu.passes_numa_through and pinned is not None and hugepages is not None:
        return cells(pinned, facts.processors.nodes, guest_memory(domain), hugepages.pageSize)
    if is_memfd(vmi):
        return (Cell(vcpus=tuple(range(cpu.vcpus(domain))), memory=guest_memory(domain)),)
    return ()


def cells_of_nodes(
    vmi: VirtualMachineInstance, pinned: Pinning | None, facts: Facts, nodes: tuple[int, ...]
) -> tuple[Cell, ...]:
    """The guest's NUMA cells, where its cards are to be in one: one for each node that serves its vCPUs, where it has
    CPUs of its own; else one for each of these `nodes` of the host's.

    Memory is bound to a cell's node where it is hugepages, and where the topology is strict.
    """
    domain = vmi.spec.domain
    page = domain.memory.hugepages.pageSize if domain.memory.hugepages is not None else None
    bound = page is not None or vmi.metadata.annotations.is_strict
    if pinned is not None:
        return cells(pinned, facts.processors.nodes, guest_memory(domain), page, bound=bound)
    if not nodes:
        return ()
    sockets, cores, threads = cpu.topology(domain)
    return cells_for(nodes, facts.processors.nodes, sockets * cores, threads, guest_memory(domain), page, bound=bound)


def placement(vmi: VirtualMachineInstance, pinned: Pinning | None, cells: tuple[Cell, ...]) -> list[Element]:
    elements = []
    if pinned is not None:
        elements.append(_cputune(vmi, pinned))
    bound = [(number, cell.node) for number, cell in enumerate(cells) if cell.is_bound and cell.node is not None]
    if bound:
        nodes = cpulist(tuple(node for _, node in bound))
        elements.append(
            E.numatune(
                E.memory(mode="strict", nodeset=nodes),
                *(E.memnode(cellid=str(number), mode="strict", nodeset=str(node)) for number, node in bound),
            )
        )
    return elements


def _cputune(vmi: VirtualMachineInstance, pinned: Pinning) -> Element:
    element = E.cputune(*(E.vcpupin(vcpu=str(vcpu), cpuset=str(at)) for vcpu, at in enumerate(pinned.vcpus)))
    if pinned.emulator:
        element.append(E.emulatorpin(cpuset=_cpuset(pinned.emulator)))
    for thread, cpus in enumerate(pinned.iothreads, start=1):
        element.append(E.iothreadpin(iothread=str(thread), cpuset=_cpuset(cpus)))
    realtime = vmi.spec.domain.cpu.realtime
    if realtime is not None:
        # KubeVirt's handler does it from outside, to the same end. Here libvirt does, with CAP_SYS_NICE.
        scheduled = cpulist(realtime.vcpus(len(pinned.vcpus)))
        element.append(E.vcpusched(vcpus=scheduled, scheduler="fifo", priority="1"))
    return element


def _emulator_threads(vmi: VirtualMachineInstance, others: int) -> int:
    """One; with KubeVirt's annotation another one where that makes the pod's CPUs even, as whole cores are."""
    return 2 if vmi.metadata.annotations.even_emulator and others % 2 == 0 else 1


def _cpuset(cpus: tuple[int, ...]) -> str:
    return cpulist(tuple(sorted(cpus)))
