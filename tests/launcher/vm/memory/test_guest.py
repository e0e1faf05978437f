"""How a guest's memory is allocated before VFIO pins it: by whom, by which pages, and how long that takes."""

from typing import Any
from uuid import UUID

import pytest

from launcher.vm.cards.claims import Claim, Entry, EntryKind
from launcher.vm.cpu.guest import Cell
from launcher.vm.guest import CPUTopology, Guest
from launcher.vm.guest_pci.addresses import HostDev, Layout, Seat
from launcher.vm.memory.checks import slow_start
from launcher.vm.memory.guest import MemoryAllocation, allocation, in_huge_pages, says, threads
from launcher.vm.security.confidentiality import SEV
from pci.address import PCIAddress
from pci.host import TransparentPages
from tests.launcher.vms import a_guest

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
CARD = PCIAddress(0, 1, 0, 0)
NEVER = TransparentPages("never", "never")
MADVISE = TransparentPages("madvise", "advise")


def guest(vcpus: int, memory: int = GIB, **more: Any) -> Guest:
    return a_guest(memory=memory, cpus=CPUTopology(1, vcpus, 1), **more)


def seated(source: PCIAddress | UUID = CARD, *cells: Cell) -> Layout:
    claim = Claim(entry=Entry(kind=EntryKind.GPU, name="gpu", wants="example.com/gpu"), device=source, variable=None)
    device = HostDev(source=source, address=CARD, claim=claim, multifunction=False)
    return Layout(seats=(Seat(claim=claim, bus=1, hostdevs=(device,)),), cells=cells)


@pytest.mark.parametrize(
    ("this", "layout", "number"),
    [
        (guest(8), seated(), 8),
        (guest(64), seated(), 16),
        (guest(8, emulator_cpus=1), seated(), 1),
        # Each cell's threads are on its node.
        (guest(8, emulator_cpus=1), seated(CARD, *[Cell(vcpus=(0, 1, 2, 3), memory=GIB, is_bound=True)] * 2), 4),
        (guest(8), seated(CARD, Cell(vcpus=tuple(range(8)), memory=GIB)), 8),
        (guest(8), Layout(), 0),
        (guest(8), seated(UUID(int=1)), 0),
        (guest(8, confidentiality=SEV), seated(), 0),
    ],
)
def test_as_many_threads_as_the_guest_has_cpus_for_them_allocate_what_vfio_pins(
    this: Guest, layout: Layout, number: int
) -> None:
    assert threads(this, layout) == number


@pytest.mark.parametrize(
    ("this", "node", "page"),
    [
        (guest(1), MADVISE, 2 * MIB),
        (guest(1), NEVER, 4 * KIB),
        (guest(1, is_memfd=True), TransparentPages("always", "never"), 4 * KIB),
        (guest(1, is_memfd=True), TransparentPages("never", "within_size"), 2 * MIB),
        (guest(1, page=GIB), NEVER, GIB),
        (guest(1), TransparentPages(), None),
    ],
)
def test_the_pages_are_what_the_manifest_or_else_the_node_says(
    this: Guest, node: TransparentPages, page: int | None
) -> None:
    found = allocation(this, seated(), node)
    assert (found.page if found is not None else None) == page
    assert allocation(this, Layout(), node) is None


def test_a_large_guest_in_small_pages_is_told_what_would_be_sooner() -> None:
    found = allocation(guest(1, 128 * GIB), seated(), NEVER)
    assert found is not None
    assert (says(found), round(found.seconds)) == ("128Gi in pages of 4Ki, by 1 thread", 35)
    assert round(in_huge_pages(found).seconds) == 13
    finding = slow_start(guest(1), found)
    assert finding is not None
    assert str(finding.problem) == (
        "the guest's memory: takes about 35 s before the guest's first instruction: it is 128Gi in pages of 4Ki, by "
        "1 thread; in huge pages it takes about 13 s: on the node, in /sys/kernel/mm/transparent_hugepage, "
        "echo madvise > enabled, or give the VM memory.hugepages"
    )


@pytest.mark.parametrize(
    ("this", "found", "fix"),
    [
        (guest(1, is_memfd=True), MemoryAllocation(128 * GIB, 4 * KIB, 1, 35), "echo advise > shmem_enabled"),
        (
            guest(2),
            MemoryAllocation(128 * GIB, 2 * MIB, 2, 12),
            "more vCPUs have more threads do that, up to 4 of them",
        ),
        (guest(2, emulator_cpus=1), MemoryAllocation(256 * GIB, 2 * MIB, 1, 25), "leave cpu.isolateEmulatorThread out"),
        (guest(16), MemoryAllocation(1024 * GIB, 2 * MIB, 16, 25), "only less memory takes less time"),
    ],
)
def test_what_would_halve_it_depends_on_what_it_is(this: Guest, found: MemoryAllocation, fix: str) -> None:
    finding = slow_start(this, found)
    assert finding is not None
    assert fix in finding.problem.fix


def test_what_takes_no_longer_than_a_start_is_not_worth_a_word() -> None:
    assert slow_start(guest(1), MemoryAllocation(16 * GIB, 2 * MIB, 1, 2)) is None
