"""How long the guest's memory takes before its first instruction, and what would halve that."""

from launcher.allocation import MOST_COUNTED, MemoryAllocation, in_huge_pages, says
from launcher.guest import Guest
from program.finding import Finding
from program.problem import Problem, Severity

_WORTH_SAYING = 10.0  # seconds


def slow_start(guest: Guest, found: MemoryAllocation) -> Finding | None:
    """Return a note if the memory alone takes longer than a start does otherwise."""
    if found.seconds < _WORTH_SAYING:
        return None
    wrong = f"takes about {found.seconds:.0f} s before the guest's first instruction: it is {says(found)}"
    return Finding(Severity.NOTE, Problem("the guest's memory", wrong, _sooner(guest, found)))


def _sooner(guest: Guest, found: MemoryAllocation) -> str:
    large = in_huge_pages(found)
    if large.page > found.page:
        setting = "advise > shmem_enabled" if guest.is_memfd else "madvise > enabled"
        return (
            f"in huge pages it takes about {large.seconds:.0f} s: on the node, in /sys/kernel/mm/transparent_hugepage, "
            f"echo {setting}, or give the VM memory.hugepages"
        )
    if found.threads >= MOST_COUNTED:
        return "its pages are large, and its threads enough: only less memory takes less time"
    if guest.emulator_cpus:
        return "leave cpu.isolateEmulatorThread out: its CPU has to do all of that"
    return f"more vCPUs have more threads do that, up to {MOST_COUNTED} of them"
