"""Which CPUs of the pod, or of an own machine, serve the guest's, and the guest's NUMA cells.

The rules are KubeVirt's (pkg/virt-launcher/virtwrap/converter/vcpu): a core of the guest gets threads of one core of
the host as long as whole cores are left; then single CPUs, of one node if possible.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from launcher.vm.facts import Facts
from launcher.vm.guest import Guest
from pci.processors import NUMANode, Processors, cpulist
from program.errors import UserError

_MEBIBYTE = 1 << 20  # libvirt makes cells of whole ones (qemuDomainGetMemorySizeAlignment)
_WHOLE_CORES = "expected cpu.threads: 1, or a pod of whole cores (kubelet's CPU manager option full-pcpus-only)"
_FEWER = "give the guest fewer cores or threads"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinning:
    """The CPU of each vCPU; the CPUs of QEMU's own threads, empty if they may run anywhere; the CPUs of each I/O
    thread, from thread 1 on."""

    vcpus: tuple[int, ...]
    emulator: tuple[int, ...]
    iothreads: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A NUMA cell of the guest: its vCPUs, its memory in bytes, the host's node behind it or None, and the distance to
    each cell, itself included, if known. `is_bound`: its memory comes from that node alone."""

    vcpus: tuple[int, ...]
    memory: int
    node: int | None = None
    distances: tuple[int, ...] = ()
    is_bound: bool = False


def pinning(guest: Guest, facts: Facts) -> Pinning | None:
    """Return the CPUs that serve this guest alone; None if it has none of its own. UserError if there are too few."""
    if not guest.has_own_cpus:
        return None
    assert facts.cpus is not None, "the place of a start tells them, or assumes some"
    return pin(guest, facts.cpus, facts.processors, in_pod=facts.own is None)


def pin(guest: Guest, cpus: tuple[int, ...], host: Processors, *, in_pod: bool = True) -> Pinning:
    """Choose among the pod's CPUs, or an own machine's, for a guest that has its own; UserError if they don't
    suffice."""
    place = "the pod" if in_pod else "this machine"
    if len(cpus) < guest.pod_cpus:
        raise _too_few(guest, cpus, place, f"expected the pod to request {guest.pod_cpus}" if in_pod else _FEWER)
    nodes = _nodes_of(cpus, host, guest.cpus.threads, place)
    vcpus = _cores(guest, nodes, place, _WHOLE_CORES if in_pod else _FEWER)
    pool = tuple((_single(nodes),) for _ in range(guest.iothread_pool))
    emulator = tuple(_single(nodes) for _ in range(guest.emulator_cpus))
    return Pinning(vcpus=vcpus, emulator=emulator, iothreads=pool or _iothreads(guest, emulator, cpus))


def guest_cells(guest: Guest, pinned: Pinning | None, facts: Facts) -> tuple[Cell, ...]:
    """Return the guest's NUMA cells: the host's nodes, if they are passed through; one cell if the memory is a memfd,
    as libvirt requires and KubeVirt writes; else none."""
    if guest.passes_numa_through and pinned is not None and guest.page is not None:
        return cells(pinned, facts.processors.nodes, guest.memory, guest.page)
    if guest.is_memfd:
        return (Cell(vcpus=tuple(range(guest.vcpus)), memory=guest.memory),)
    return ()


def cells_of_nodes(guest: Guest, pinned: Pinning | None, facts: Facts, wanted: tuple[int, ...]) -> tuple[Cell, ...]:
    """Return the guest's NUMA cells if its cards are to be in them. A guest with CPUs of its own has a cell for each
    node that serves its vCPUs; another guest has one for each of the host's nodes that are `wanted`.

    The latter share the guest's cores equally; if there are more nodes than cores, the last cells have memory alone.
    Memory is bound to a cell's node if it is hugepages, and if the topology is strict.
    """
    bound, nodes = guest.page is not None or guest.is_strict, facts.processors.nodes
    if pinned is not None:
        return cells(pinned, nodes, guest.memory, guest.page, bound=bound)
    if not wanted:
        return ()
    known = {node.id: node for node in nodes}
    threads = guest.cpus.threads
    share, left = divmod(guest.vcpus // threads, len(wanted))
    serving = []
    first = 0
    for number, node in enumerate(wanted):
        last = first + share + (number < left)
        serving.append((known.get(node, NUMANode(id=node, cpus=())), tuple(range(first * threads, last * threads))))
        first = last
    return _divided(serving, guest.memory, guest.page, bound)


def cells(
    pinning: Pinning, nodes: tuple[NUMANode, ...], memory: int, page: int | None, *, bound: bool = True
) -> tuple[Cell, ...]:
    """Return a cell for each node that serves a vCPU: its vCPUs, and an equal part of the memory, in whole pages.

    The first cells get the remaining pages, one each. `page` is a hugepage's size, None without hugepages. UserError
    if there are fewer hugepages than cells.
    """
    served = ((node, tuple(vcpu for vcpu, cpu in enumerate(pinning.vcpus) if cpu in node.cpus)) for node in nodes)
    return _divided([(node, vcpus) for node, vcpus in served if vcpus], memory, page, bound)


def _divided(
    serving: list[tuple[NUMANode, tuple[int, ...]]], memory: int, page: int | None, bound: bool
) -> tuple[Cell, ...]:
    unit = page or _MEBIBYTE
    pages, left = divmod(memory // unit, len(serving))
    if page is not None and not pages:
        raise UserError(
            "spec.domain.memory",
            f"{memory} bytes are too few for a hugepage of {page} in each of the guest's {len(serving)} NUMA cells",
            f"expected {len(serving) * page} at least, or smaller pages",
        )
    ids = [node.id for node, _ in serving]
    return tuple(
        Cell(
            vcpus=vcpus,
            # What is less than a page goes to the first cell: libvirt rounds it up.
            memory=(pages + (number < left)) * unit + (memory % unit if number == 0 else 0),
            node=node.id,
            distances=_distances(node, ids),
            is_bound=bound,
        )
        for number, (node, vcpus) in enumerate(serving)
    )


class _Node:
    """The pod's CPUs on one node that are still free: cores with threads enough, and single CPUs."""

    def __init__(self, cores: Iterable[tuple[int, ...]], threads: int) -> None:
        self._threads = threads
        self._cores: list[tuple[int, ...]] = []
        self.singles: list[int] = []
        for core in cores:
            self._keep(core)

    def _keep(self, core: tuple[int, ...], at: int | None = None) -> None:
        if len(core) >= self._threads:
            self._cores.insert(len(self._cores) if at is None else at, core)
        else:
            self.singles += core

    def core(self) -> tuple[int, ...]:
        """Take threads of one core of the host for a core of the guest; empty if no such core is left."""
        return self._split(self._threads) if self._cores else ()

    def gathered(self) -> tuple[int, ...]:
        """Take single CPUs for a core of the guest; empty if too few are left."""
        if len(self.singles) < self._threads:
            return ()
        taken, self.singles = self.singles[: self._threads], self.singles[self._threads :]
        return tuple(taken)

    def cpu(self) -> int | None:
        """Take one CPU, a single one if possible; None if none is left."""
        if self.singles:
            return self.singles.pop(0)
        return self._split(1)[0] if self._cores else None

    def _split(self, threads: int) -> tuple[int, ...]:
        core = self._cores.pop(0)
        self._keep(core[threads:], at=0)
        return core[:threads]


def _nodes_of(cpus: tuple[int, ...], host: Processors, threads: int, place: str) -> list[_Node]:
    core_of = {cpu: core for core in host.cores for cpu in core}
    left = set(cpus)
    nodes = []
    for node in host.nodes:
        cores = []
        for cpu in node.cpus:
            core = core_of.get(cpu, (cpu,))
            if not left.isdisjoint(core):
                cores.append(tuple(thread for thread in core if thread in left))
                left.difference_update(core)
        nodes.append(_Node(cores, threads))
    if strange := tuple(cpu for cpu in cpus if cpu in left):
        known = cpulist(tuple(sorted(cpu for node in host.nodes for cpu in node.cpus)))
        raise UserError(
            place,
            f"has the CPUs {cpulist(strange)}, and the sysfs {known or 'none'}",
            "expected the cpuset and the sysfs of one machine",
        )
    return nodes


def _cores(guest: Guest, nodes: list[_Node], place: str, fix: str) -> tuple[int, ...]:
    """Take the CPU of each vCPU, core by core."""
    taken: list[int] = []
    for take in (_Node.core, _Node.gathered):
        for node in nodes:
            while len(taken) < guest.vcpus and (core := take(node)):
                taken += core
    missing = guest.vcpus - len(taken)
    if missing and guest.passes_numa_through:
        threads = guest.cpus.threads
        raise UserError(
            "spec.domain.cpu.numa.guestMappingPassthrough",
            f"{missing // threads} of the guest's {guest.vcpus // threads} cores find no {threads} CPUs of one NUMA "
            f"node in {place}",
            fix,
        )
    return (*taken, *(_single(nodes) for _ in range(missing)))


def _single(nodes: list[_Node]) -> int:
    return next(cpu for node in nodes if (cpu := node.cpu()) is not None)


def _iothreads(guest: Guest, emulator: tuple[int, ...], cpus: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Spread the I/O threads: over the emulator's CPUs, if it has its own; else over the pod's, in fair parts."""
    threads = range(1, guest.iothreads + 1)
    if emulator:
        return tuple(emulator for _ in threads)
    if guest.iothreads >= guest.vcpus:
        return tuple((cpus[thread % guest.vcpus],) for thread in threads)
    parts, rest = [], cpus[: guest.vcpus]
    for thread in threads:
        size = -(-len(rest) // (guest.iothreads - thread + 1))
        parts.append(rest[:size])
        rest = rest[size:]
    return tuple(parts)


def _too_few(guest: Guest, cpus: tuple[int, ...], place: str, fix: str) -> UserError:
    others = ((guest.iothread_pool, "for I/O threads"), (guest.emulator_cpus, "for the emulator"))
    parts = [f"{guest.vcpus} vCPUs", *(f"{number} {what}" for number, what in others if number)]
    return UserError(
        "spec.domain.cpu.dedicatedCpuPlacement",
        f"the guest needs {guest.pod_cpus} CPUs ({', '.join(parts)}), and {place} has {len(cpus)} "
        f"({cpulist(cpus) or 'none'})",
        fix,
    )


def _distances(node: NUMANode, ids: list[int]) -> tuple[int, ...]:
    """Return the distances to these nodes; none for a single cell, or if libvirt would refuse one (10 to 255)."""
    known = dict(node.distances)
    distances = tuple(known.get(other, 0) for other in ids)
    return distances if len(ids) > 1 and all(10 <= distance <= 255 for distance in distances) else ()
