"""Which of the pod's CPUs serve the guest's, and the NUMA cells that the guest gets for that.

The rules are KubeVirt's (pkg/virt-launcher/virtwrap/converter/vcpu): a core of the guest's gets threads of one core of
the host's while there are whole ones; then CPUs of cores of which the pod has not all, of one node if possible.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pci.processors import NUMANode, Processors, cpulist
from program.errors import UserError

_MEBIBYTE = 1 << 20  # libvirt makes cells of whole ones (qemuDomainGetMemorySizeAlignment)


@dataclass(frozen=True, slots=True, kw_only=True)
class CPUDemand:
    """What is to be pinned: cores of so many threads, and further threads of QEMU's.

    `emulator` and `pool` are CPUs besides those of the vCPUs, for QEMU itself and for a supplemental pool of I/O
    threads; `iothreads` are I/O threads on the CPUs that there are. `within_nodes`: a core is never split over nodes.
    """

    cores: int
    threads: int
    emulator: int = 0
    pool: int = 0
    iothreads: int = 0
    within_nodes: bool = False

    @property
    def vcpus(self) -> int:
        return self.cores * self.threads

    @property
    def cpus(self) -> int:
        """How many CPUs that takes."""
        return self.vcpus + self.pool + self.emulator


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinning:
    """The CPU of each vCPU; the CPUs of QEMU's own threads, none where they may run anywhere; those of each I/O thread,
    the first being thread 1."""

    vcpus: tuple[int, ...]
    emulator: tuple[int, ...]
    iothreads: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A NUMA cell of the guest's: its vCPUs, its memory in bytes, the host's node behind it or None, and the distance
    to each cell, itself included, where they are known. `is_bound`: its memory is that node's and no other's."""

    vcpus: tuple[int, ...]
    memory: int
    node: int | None = None
    distances: tuple[int, ...] = ()
    is_bound: bool = False


def pin(wanted: CPUDemand, cpus: tuple[int, ...], host: Processors) -> Pinning:
    """A CPU of the pod's for everything that is wanted; UserError where they don't suffice."""
    _refuse_too_few(wanted, cpus)
    nodes = _of_pod(cpus, host, wanted.threads)
    vcpus = _cores(wanted, nodes)
    pool = tuple((_single(nodes),) for _ in range(wanted.pool))
    emulator = tuple(_single(nodes) for _ in range(wanted.emulator))
    return Pinning(vcpus=vcpus, emulator=emulator, iothreads=pool or _iothreads(wanted, emulator, cpus))


def cells(
    pinning: Pinning, nodes: tuple[NUMANode, ...], memory: int, page: int | None, *, bound: bool = True
) -> tuple[Cell, ...]:
    """A cell for each node that serves a vCPU: its vCPUs, and an equal part of the memory, in whole pages.

    What cannot be divided goes to the first cells, a page each. `page` is a hugepage's size, None where there are none.
    UserError where there are fewer hugepages than cells.
    """
    serving = [(node, vcpus) for node in nodes if (vcpus := _served_by(node, pinning))]
    return _divided(serving, memory, page, bound)


def cells_for(
    wanted: tuple[int, ...],
    nodes: tuple[NUMANode, ...],
    cores: int,
    threads: int,
    memory: int,
    page: int | None,
    *,
    bound: bool,
) -> tuple[Cell, ...]:
    """A cell for each wanted node of the host's, where no CPU is pinned: an equal part of the guest's cores, and of the
    memory as in `cells`. Where there are more nodes than cores, the last cells have memory alone.
    """
    known = {node.id: node for node in nodes}
    share, left = divmod(cores, len(wanted))
    serving = []
    first = 0
    for number, node in enumerate(wanted):
        last = first + share + (number < left)
        serving.append((known.get(node, NUMANode(id=node, cpus=())), tuple(range(first * threads, last * threads))))
        first = last
    return _divided(serving, memory, page, bound)


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
    """What is left of the pod's CPUs on one node: cores with threads enough, and single CPUs."""

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
        """Threads of one of the host's cores; none where there is no such core left."""
        return self._split(self._threads) if self._cores else ()

    def gathered(self) -> tuple[int, ...]:
        """As many single CPUs; none where there are not enough."""
        if len(self.singles) < self._threads:
            return ()
        taken, self.singles = self.singles[: self._threads], self.singles[self._threads :]
        return tuple(taken)

    def cpu(self) -> int | None:
        if self.singles:
            return self.singles.pop(0)
        return self._split(1)[0] if self._cores else None

    def _split(self, threads: int) -> tuple[int, ...]:
        core = self._cores.pop(0)
        self._keep(core[threads:], at=0)
        return core[:threads]


def _of_pod(cpus: tuple[int, ...], host: Processors, threads: int) -> list[_Node]:
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
            "the pod",
            f"has the CPUs {cpulist(strange)}, and the node has {known or 'none'}",
            "expected the cpuset and the sysfs of one machine",
        )
    return nodes


def _cores(wanted: CPUDemand, nodes: list[_Node]) -> tuple[int, ...]:
    """The CPU of each vCPU, core by core."""
    taken: list[int] = []
    for take in (_Node.core, _Node.gathered):
        for node in nodes:
            while len(taken) < wanted.vcpus and (core := take(node)):
                taken += core
    if len(taken) < wanted.vcpus and wanted.within_nodes:
        without = wanted.cores - len(taken) // wanted.threads
        raise UserError(
            "spec.domain.cpu.numa.guestMappingPassthrough",
            f"{without} of the guest's {wanted.cores} cores find no {wanted.threads} CPUs of one NUMA node in the pod",
            "expected cpu.threads: 1, or a pod of whole cores (kubelet's CPU manager option full-pcpus-only)",
        )
    for node in nodes:
        missing = wanted.vcpus - len(taken)
        taken += node.singles[:missing]
        del node.singles[:missing]
    return tuple(taken)


def _single(nodes: list[_Node]) -> int:
    return next(cpu for node in nodes if (cpu := node.cpu()) is not None)


def _iothreads(wanted: CPUDemand, emulator: tuple[int, ...], cpus: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """On the emulator's CPUs, where it has its own; else on the pod's, of which each thread gets a fair part."""
    threads = range(1, wanted.iothreads + 1)
    if emulator:
        return tuple(emulator for _ in threads)
    if wanted.iothreads >= wanted.vcpus:
        return tuple((cpus[thread % wanted.vcpus],) for thread in threads)
    parts, rest = [], cpus[: wanted.vcpus]
    for thread in threads:
        size = -(-len(rest) // (wanted.iothreads - thread + 1))
        parts.append(rest[:size])
        rest = rest[size:]
    return tuple(parts)


def _refuse_too_few(wanted: CPUDemand, cpus: tuple[int, ...]) -> None:
    if len(cpus) >= wanted.cpus:
        return
    others = ((wanted.pool, "for I/O threads"), (wanted.emulator, "for the emulator"))
    parts = [f"{wanted.vcpus} vCPUs", *(f"{number} {what}" for number, what in others if number)]
    raise UserError(
        "spec.domain.cpu.dedicatedCpuPlacement",
        f"the guest needs {wanted.cpus} CPUs ({', '.join(parts)}), and the pod has {len(cpus)} "
        f"({cpulist(cpus) or 'none'})",
        f"expected the pod to request {wanted.cpus}",
    )


def _served_by(node: NUMANode, pinning: Pinning) -> tuple[int, ...]:
    cpus = frozenset(node.cpus)
    return tuple(vcpu for vcpu, cpu in enumerate(pinning.vcpus) if cpu in cpus)


def _distances(node: NUMANode, ids: list[int]) -> tuple[int, ...]:
    """To these nodes. A cell alone has none, and so has a table that libvirt would refuse (10 to 255)."""
    known = dict(node.distances)
    distances = tuple(known.get(other, 0) for other in ids)
    return distances if len(ids) > 1 and all(10 <= distance <= 255 for distance in distances) else ()
