"""The CPUs and the NUMA cells that a guest has, on the host that the facts describe."""

from launcher.cpus.pinning import Cell, CPUDemand, Pinning, cells, cells_for, pin
from launcher.facts import Facts
from launcher.guest import Guest
from program.errors import UserError

_SYSFS = "--sysfs, with devices/system/cpu and devices/system/node of the node, as gpu-plugin record copies them"


def pinning(guest: Guest, facts: Facts) -> Pinning | None:
    """The CPUs that are the guest's alone; None where it has none. UserError where they are not known, or too few."""
    if not guest.has_own_cpus:
        return None
    unknown = [
        *([("the pod's CPUs", "--cpuset, with what the pod has, like 0-3,8")] if facts.cpus is None else []),
        *([("the node's cores and NUMA nodes", _SYSFS)] if not facts.processors.nodes else []),
    ]
    if facts.cpus is None or unknown:
        things, flags = (" and ".join(words) for words in zip(*unknown, strict=True))
        raise UserError("spec.domain.cpu.dedicatedCpuPlacement", f"{things} are not known here", f"expected {flags}")
    return pin(wanted(guest), facts.cpus, facts.processors)


def wanted(guest: Guest) -> CPUDemand:
    """The CPUs that a guest asks for that is to have its own."""
    sockets, cores, threads = guest.cpus
    return CPUDemand(
        cores=sockets * cores,
        threads=threads,
        emulator=guest.emulator_cpus,
        pool=guest.iothread_pool,
        iothreads=guest.iothreads - guest.iothread_pool,
        within_nodes=guest.passes_numa_through,
    )


def guest_cells(guest: Guest, pinned: Pinning | None, facts: Facts) -> tuple[Cell, ...]:
    """The guest's NUMA cells: the host's nodes, where they are passed through; else one where libvirt wants one for
    memory from memfd, as KubeVirt writes it; else none."""
    if guest.passes_numa_through and pinned is not None and guest.page is not None:
        return cells(pinned, facts.processors.nodes, guest.memory, guest.page)
    if guest.is_memfd:
        return (Cell(vcpus=tuple(range(guest.vcpus)), memory=guest.memory),)
    return ()


def cells_of_nodes(guest: Guest, pinned: Pinning | None, facts: Facts, nodes: tuple[int, ...]) -> tuple[Cell, ...]:
    """The guest's NUMA cells, where its cards are to be in one: one for each node that serves its vCPUs, where it has
    CPUs of its own; else one for each of these `nodes` of the host's.

    Memory is bound to a cell's node where it is hugepages, and where the topology is strict.
    """
    bound = guest.page is not None or guest.is_strict
    if pinned is not None:
        return cells(pinned, facts.processors.nodes, guest.memory, guest.page, bound=bound)
    if not nodes:
        return ()
    sockets, cores, threads = guest.cpus
    return cells_for(nodes, facts.processors.nodes, sockets * cores, threads, guest.memory, guest.page, bound=bound)
