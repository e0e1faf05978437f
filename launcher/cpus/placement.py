"""The placement that a manifest asks for, on the host that the facts describe."""

from launcher.cpus.pinning import Cell, Pinning, Wanted, cells, cells_for, pin
from launcher.facts import Facts
from launcher.iothreads import count, supplemental
from launcher.manifest.spec import VirtualMachineInstance
from program.errors import UserError


def pinning(vmi: VirtualMachineInstance, facts: Facts) -> Pinning | None:
    """The CPUs that are the guest's alone; None where it has none. UserError where they are not known, or too few."""
    domain = vmi.spec.domain
    if not domain.cpu.dedicatedCpuPlacement:
        return None
    if facts.cpus is None:
        raise UserError(
            "spec.domain.cpu.dedicatedCpuPlacement",
            "the pod's CPUs are not known here",
            "expected --cpuset, with what the pod has, like 0-3,8",
        )
    if not facts.processors.nodes:
        raise UserError(
            "spec.domain.cpu.dedicatedCpuPlacement",
            "the node's cores and NUMA nodes are not known here",
            "expected --sysfs, with devices/system/cpu and devices/system/node",
        )
    return pin(wanted(vmi), facts.cpus, facts.processors)


def wanted(vmi: VirtualMachineInstance) -> Wanted:
    """The CPUs that a guest asks for that is to have its own."""
    domain = vmi.spec.domain
    sockets, cores, threads = domain.topology
    pool = supplemental(domain)
    return Wanted(
        cores=sockets * cores,
        threads=threads,
        emulator=_emulator_threads(vmi, domain.vcpus + pool) if domain.cpu.isolateEmulatorThread else 0,
        pool=pool,
        iothreads=0 if pool else count(vmi),
        within_nodes=domain.cpu.passes_numa_through,
    )


def guest_cells(vmi: VirtualMachineInstance, pinned: Pinning | None, facts: Facts) -> tuple[Cell, ...]:
    """The guest's NUMA cells: the host's nodes, where they are passed through; else one where libvirt wants one for
    memory from memfd, as KubeVirt writes it; else none."""
    domain = vmi.spec.domain
    hugepages = domain.memory.hugepages
    if domain.cpu.passes_numa_through and pinned is not None and hugepages is not None:
        return cells(pinned, facts.processors.nodes, domain.guest_memory, hugepages.pageSize)
    if vmi.is_memfd:
        return (Cell(vcpus=tuple(range(domain.vcpus)), memory=domain.guest_memory),)
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
        return cells(pinned, facts.processors.nodes, domain.guest_memory, page, bound=bound)
    if not nodes:
        return ()
    sockets, cores, threads = domain.topology
    return cells_for(nodes, facts.processors.nodes, sockets * cores, threads, domain.guest_memory, page, bound=bound)


def _emulator_threads(vmi: VirtualMachineInstance, others: int) -> int:
    """One; with KubeVirt's annotation another one where that makes the pod's CPUs even, as whole cores are."""
    return 2 if vmi.metadata.annotations.even_emulator and others % 2 == 0 else 1
