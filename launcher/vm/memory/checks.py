"""Compares the guest's memory and CPUs with what the container may use of the node's: limits of its cgroup,
RLIMIT_MEMLOCK, free hugepages and their file system; and estimates how long the memory takes before the guest's first
instruction.

A cgroup has the files of version 2 or of version 1 (kernel Documentation/admin-guide/cgroup-v2.rst,
cgroup-v1/memory.rst; Documentation/scheduler/sched-bwc.rst; of hugepages mm/hugetlbpage.rst). A container sees its own,
and maybe some above it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.fields.quantity import written
from launcher.vm.cards.guest import GuestCard
from launcher.vm.checks import POD, Wording, error, warning
from launcher.vm.cpu.guest import Cell
from launcher.vm.guest import Guest
from launcher.vm.memory.guest import MOST_COUNTED, MemoryAllocation, in_huge_pages, says
from pci.resource import USBAddress
from pci.sysfs.attribute import Unreadable, names, text
from pci.sysfs.processors import NODES
from program.finding import Finding
from program.problem import Problem, Severity

_ROOT = "fs/cgroup"
_MIB = 1 << 20
#: Version 1 writes a number for "no limit": the largest that is a multiple of the page size (PAGE_COUNTER_MAX).
_NO_LIMIT = 1 << 62
_MEMORY_LIMIT = "the container's memory limit"
#: Sizes of hugepages, as the kernel names them (hugetlb_cgroup_file_init, mem_fmt in mm/hugetlb_cgroup.c): 2MB.
_PAGES = {1 << bits: written(1 << bits).replace("i", "B") for bits in range(16, 36)}
#: Beside the guest's memory, for what else of its process VFIO may map (libvirt, qemuDomainGetMemLockLimitBytes).
_RESERVE = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bytes of memory, CPUs by quota, and bytes of hugepages by page size. None, or no entry, means no limit."""

    memory: int | None = None
    cpus: float | None = None
    hugepages: Mapping[int, int]


def read_limits(sys: Path, membership: str) -> Limits:
    """Read the lowest limits of this process's cgroups. `membership` is /proc/self/cgroup, "" if unknown.

    A controller is of version 1, mounted by its name, or of version 2, which has one tree for all controllers.
    """
    paths = dict(re.findall(r"^\d+:([^:\n]*):(/[^\n]*)$", membership, re.MULTILINE))
    of_controller = {name: path for names, path in paths.items() for name in names.split(",")}

    def values(controller: str, file: str) -> Iterator[str]:
        for mount, path in ((controller, of_controller.get(controller, "/")), ("", of_controller.get("", "/"))):
            for place in _places(f"{_ROOT}/{mount}".rstrip("/"), path):
                try:
                    value = text(sys, f"{place}/{file}")
                except Unreadable:
                    continue  # what is no text is no limit
                if value:
                    yield value

    def lowest(controller: str, *files: str) -> int | None:
        return min((number for file in files for number in _numbers(values(controller, file))), default=None)

    cpus = [*_quotas(values("cpu", "cpu.max"))]
    for quota, period in zip(values("cpu", "cpu.cfs_quota_us"), values("cpu", "cpu.cfs_period_us"), strict=False):
        cpus += _quotas([f"{quota} {period}"])
    return Limits(
        memory=lowest("memory", "memory.max", "memory.limit_in_bytes"),
        cpus=min(cpus, default=None),
        hugepages={
            size: limit
            for size, name in _PAGES.items()
            if (limit := lowest("hugetlb", f"hugetlb.{name}.max", f"hugetlb.{name}.limit_in_bytes")) is not None
        },
    )


def memory(guest: Guest, limit: int | None, beside: int, *, is_pinned: bool) -> Finding | None:
    """Return what is wrong if the guest's memory and `beside`, the bytes that its processes need besides, exceed the
    limit. If it `is_pinned`, the guest has all of it from its start. Hugepages have limits of their own."""
    own = guest.memory if guest.page is None else 0
    if limit is None or limit >= own + beside:
        return None
    says = f"is {limit // _MIB} MiB, and the guest takes {own // _MIB} MiB, with {beside // _MIB} MiB beside it"
    fix = "raise resources.limits.memory of the container to that of the Pod that gpu-launcher pod prints"
    if is_pinned and own and limit <= own:
        return error(_MEMORY_LIMIT, f"{says}: VFIO and SEV pin the guest's, and the kernel would kill QEMU", fix)
    return warning(_MEMORY_LIMIT, f"{says}: the kernel kills QEMU if it is all used", fix)


def to_be_locked(guest: Guest, cards: Iterable[GuestCard]) -> int:
    """Return how many bytes QEMU has to be able to lock; 0 if no device reaches the guest's memory by DMA.

    That is what libvirt gives a QEMU with VFIO: the guest's memory, in whole MiB, and 1 GiB. It counts once for all
    devices; only with an IOMMU in the guest, or with vDPA, does each count, and our domains have neither. SEV pins the
    guest too, and libvirt gives it nothing for that (docs/kbase/launch_security_sev.rst, "Memory").
    """
    is_pinned = guest.confidentiality is not None and guest.confidentiality.pins_memory
    if not is_pinned and all(isinstance(card.device, USBAddress) for card in cards):
        return 0
    return -(-guest.memory // _MIB) * _MIB + _RESERVE


def memlock(needed: int, limit: int | None, wording: Wording = POD) -> Finding | None:
    """Return an error if `limit` is too low: what a QEMU of this process may lock, in bytes, when it has been raised as
    far as possible. None means no limit."""
    if limit is None or limit >= needed:
        return None
    return error(
        "RLIMIT_MEMLOCK",
        f"VFIO and SEV lock the guest's memory: {needed // _MIB} MiB with libvirt's reserve, and {wording.user} may "
        f"lock {limit // _MIB} MiB",
        wording.memlock,
    )


def _places(mount: str, path: str) -> list[str]:
    """Return the cgroup's directory and those above it. A container without a cgroup namespace has its own cgroup at
    the mount itself."""
    parts = [part for part in path.split("/") if part and part != ".."]
    return ["/".join([mount, *parts[:depth]]) for depth in range(len(parts) + 1)]


def _numbers(values: Iterable[str]) -> Iterator[int]:
    for each in values:
        if re.fullmatch("[0-9]{1,20}", each, re.ASCII) and int(each) < _NO_LIMIT:
            yield int(each)


def _quotas(values: Iterable[str]) -> Iterator[float]:
    """Read `QUOTA PERIOD`, in microseconds. The quotas max and -1 mean no limit."""
    for each in values:
        if match := re.fullmatch("([0-9]{1,15}) ([1-9][0-9]{0,15})", each, re.ASCII):
            yield int(match[1]) / int(match[2])


_POOLS = "kernel/mm/hugepages"
_KIB = 1 << 10


@dataclass(frozen=True, slots=True)
class Pools:
    """Free hugepages of the wanted size, in bytes, on the whole node (None if it has no pages of this size) and by NUMA
    node; all sizes that the node has, in bytes; and the sizes whose file system is mounted, 0 for the default one."""

    free: int | None
    by_node: Mapping[int, int]
    sizes: tuple[int, ...]
    mounted: frozenset[int]


def read_pools(sys: Path, page: int, mounts: str) -> Pools:
    """Read the pools of pages of `page` bytes. `mounts` is /proc/self/mounts, "" if unknown."""
    try:
        by_node = {
            int(name[4:]): available
            for name in names(sys, NODES)
            if re.fullmatch("node[0-9]{1,5}", name, re.ASCII)
            and (available := _free(sys, f"{NODES}/{name}/hugepages", page)) is not None
        }
        pools = (re.fullmatch(r"hugepages-(\d{1,12})kB", name) for name in names(sys, _POOLS))
        sizes = tuple(sorted(int(pool[1]) * _KIB for pool in pools if pool))
        free = _free(sys, _POOLS, page)
    except Unreadable:
        return Pools(None, {}, (), frozenset())
    mounted = frozenset(
        int(size[1]) * _UNITS[size[2]] if (size := re.search(r"\bpagesize=(\d{1,12})([KMG])", options)) else 0
        for options in re.findall(r"^\S+ \S+ hugetlbfs (\S+)", mounts, re.MULTILINE)
    )
    return Pools(free, by_node, sizes, mounted)


def hugepages(
    guest: Guest,
    page: int,
    cells: tuple[Cell, ...],
    pools: Pools,
    limits: Limits,
    *,
    guest_runs: bool,
    wording: Wording = POD,
) -> Iterator[Finding]:
    """Yield what a guest in pages of `page` bytes lacks. `cells` are the guest's NUMA nodes, () if unknown. If the
    `guest_runs`, it has its pages already."""
    memory = guest.memory
    subject = f"hugepages of {_shown(page)}"
    request = f"hugepages-{written(page)}"
    if pools.free is None:
        if pools.sizes:
            yield error(
                subject,
                f"are of no size that this machine has: {', '.join(map(_shown, pools.sizes))}",
                wording.no_pages,
            )
        return
    if not guest_runs:
        if pools.free < memory:
            yield error(
                subject,
                f"are free for {pools.free // _MIB} MiB, and the guest has {memory // _MIB} MiB",
                wording.few_pages.format(pages=request),
            )
        for cell in cells:
            free = pools.by_node.get(cell.node) if cell.node is not None and cell.is_bound else None
            if free is not None and free < cell.memory:
                yield error(
                    subject,
                    f"are free for {free // _MIB} MiB on NUMA node {cell.node}, and the guest has "
                    f"{cell.memory // _MIB} MiB of it",
                    "reserve more on that node (nr_hugepages in its sysfs), or leave the topology out",
                )
    limit = limits.hugepages.get(page)
    if limit is not None and limit < memory:
        yield error(
            subject,
            f"are {limit // _MIB} MiB for {wording.user}, and the guest has {memory // _MIB} MiB",
            wording.pages_limit.format(pages=request),
        )
    if not guest.is_memfd and page not in pools.mounted and 0 not in pools.mounted:
        yield error(
            subject,
            "are in no file system that is mounted here, and kubevirt.io/memfd is off",
            wording.pages_mount,
        )


_UNITS = {"K": _KIB, "M": _MIB, "G": 1 << 30}


def _free(sys: Path, pools: str, page: int) -> int | None:
    """Return the bytes of pages that are neither used nor reserved; None if there are no such pages. NUMA nodes don't
    tell how many pages are reserved."""
    pool = f"{pools}/hugepages-{page // _KIB}kB"
    free, reserved = (text(sys, f"{pool}/{name}") for name in ("free_hugepages", "resv_hugepages"))
    if free is None or not free.isdecimal():
        return None
    return (int(free) - (int(reserved) if reserved and reserved.isdecimal() else 0)) * page


def _shown(page: int) -> str:
    return f"{page >> 30} GiB" if page >= 1 << 30 else f"{page >> 20} MiB" if page >= _MIB else f"{page >> 10} KiB"


_WORTH_SAYING = 10.0  # seconds


def slow_start(guest: Guest, allocation: MemoryAllocation) -> Finding | None:
    """Return a note if the memory alone takes longer than a start does otherwise."""
    if allocation.seconds < _WORTH_SAYING:
        return None
    wrong = f"takes about {allocation.seconds:.0f} s before the guest's first instruction: it is {says(allocation)}"
    return Finding(Severity.NOTE, Problem("the guest's memory", wrong, _sooner(guest, allocation)))


def _sooner(guest: Guest, allocation: MemoryAllocation) -> str:
    large = in_huge_pages(allocation)
    if large.page > allocation.page:
        setting = "advise > shmem_enabled" if guest.is_memfd else "madvise > enabled"
        return (
            f"in huge pages it takes about {large.seconds:.0f} s: on the node, in /sys/kernel/mm/transparent_hugepage, "
            f"echo {setting}, or give the VM memory.hugepages"
        )
    if allocation.threads >= MOST_COUNTED:
        return "its pages are large, and its threads enough: only less memory takes less time"
    if guest.emulator_cpus:
        return "leave cpu.isolateEmulatorThread out: its CPU has to do all of that"
    return f"more vCPUs have more threads do that, up to {MOST_COUNTED} of them"
