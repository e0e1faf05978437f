"""How the guest's memory is allocated before its first instruction: by which pages, by how many threads, how long.

VFIO pins all of it, and one thread of the kernel's then finds and clears each page that is not there yet. So QEMU is
asked to touch all of it before, by many threads: <allocation mode='immediate' threads='N'/>.
"""

from typing import NamedTuple

from launcher.fields.quantity import written
from launcher.vm.guest import Guest
from launcher.vm.guest_pci.addresses import Layout
from pci.address import PCIAddress
from pci.host import TransparentPages

_GIB = 1 << 30
_SMALL, _HUGE = 4 << 10, 2 << 20
#: More threads QEMU does not start (MAX_MEM_PREALLOC_THREAD_COUNT in util/oslib-posix.c).
_MOST = 16
# Seconds for a thread to find, clear and map 1 GiB. By small pages: 120 GB in 29.7 to 32.5 s on a Broadwell (Linux'
# 4d83de6da265). By huge ones: 12 GiB in 1.1 s, by one thread or two: docs/decisions/0006-memory-and-iommufd.md.
_SECONDS_SMALL, _SECONDS_HUGE = 0.27, 0.1
#: The kernel's locks and the memory itself keep more threads from being quicker in proportion.
MOST_COUNTED = 4


class MemoryAllocation(NamedTuple):
    """How `size` bytes are allocated: the size of the pages, the threads, and about how many `seconds` that takes."""

    size: int
    page: int
    threads: int
    seconds: float


def threads(guest: Guest, layout: Layout) -> int:
    """Return how many threads allocate the guest's memory before the start; 0 if it is not allocated then.

    They run where its vCPUs are going to: those of a cell whose memory is bound on its node, others on the emulator's
    CPUs, if it has any of its own.
    """
    if guest.confidentiality is not None or not _is_pinned(layout):
        return 0
    bound = max((len(cell.vcpus) for cell in layout.cells if cell.is_bound), default=0)
    return min(bound or guest.emulator_cpus or guest.vcpus, _MOST)


def allocation(guest: Guest, layout: Layout, node: TransparentPages) -> MemoryAllocation | None:
    """Return how the guest's memory is allocated on this node; None if nothing is pinned, or sysfs does not show its
    pages."""
    page = guest.page or _transparent(guest, node)
    if page is None or not _is_pinned(layout):
        return None
    return _of(guest.memory, page, max(threads(guest, layout), 1))


def in_huge_pages(allocation: MemoryAllocation) -> MemoryAllocation:
    """Return the same allocation in huge pages."""
    return _of(allocation.size, max(allocation.page, _HUGE), allocation.threads)


def says(allocation: MemoryAllocation) -> str:
    """Return the allocation in words: `128Gi in pages of 4Ki, by 8 threads`."""
    by = f"{allocation.threads} threads" if allocation.threads > 1 else "1 thread"
    return f"{written(allocation.size)} in pages of {written(allocation.page)}, by {by}"


def _of(size: int, page: int, threads: int) -> MemoryAllocation:
    a_gib = _SECONDS_HUGE if page >= _HUGE else _SECONDS_SMALL
    return MemoryAllocation(size, page, threads, size / _GIB * a_gib / min(threads, MOST_COUNTED))


def _is_pinned(layout: Layout) -> bool:
    """Return whether VFIO pins all of the memory; for a mediated device, its driver pins what the guest uses."""
    return any(isinstance(device.source, PCIAddress) for seat in layout.seats for device in seat.hostdevs)


def _transparent(guest: Guest, node: TransparentPages) -> int | None:
    has_them = node.for_shared if guest.is_memfd else node.for_private
    return None if has_them is None else _HUGE if has_them else _SMALL
