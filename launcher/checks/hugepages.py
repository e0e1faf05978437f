"""Hugepages: whether enough of the wanted size are free on the node and allowed in the container, and whether their
file system is mounted, if QEMU uses it (kernel Documentation/admin-guide/mm/hugetlbpage.rst).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.checks.cgroup import Limits
from launcher.checks.finding import error
from launcher.checks.wording import POD, Wording
from launcher.cpus.pinning import Cell
from launcher.guest import Guest
from launcher.quantity import written
from pci.sysfs.attribute import Unreadable, names, text
from pci.sysfs.processors import NODES
from program.finding import Finding

_POOLS = "kernel/mm/hugepages"
_KIB, _MIB = 1 << 10, 1 << 20


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
    """Bytes of pages that are neither used nor reserved; None if there are no such pages. NUMA nodes don't tell how
    many are reserved."""
    pool = f"{pools}/hugepages-{page // _KIB}kB"
    free, reserved = (text(sys, f"{pool}/{name}") for name in ("free_hugepages", "resv_hugepages"))
    if free is None or not free.isdecimal():
        return None
    return (int(free) - (int(reserved) if reserved and reserved.isdecimal() else 0)) * page


def _shown(page: int) -> str:
    return f"{page >> 30} GiB" if page >= 1 << 30 else f"{page >> 20} MiB" if page >= _MIB else f"{page >> 10} KiB"
