"""The memory that QEMU has to be able to lock, and what a process may that has no right to raise its limit."""

import subprocess
import sys

from launcher.vm.cards.claims import Claim, Entry, EntryKind
from launcher.vm.cards.guest import GuestCard
from launcher.vm.memory.checks import memlock, to_be_locked
from launcher.vm.security.confidentiality import SEV, SEV_SNP
from pci.address import PCIAddress
from pci.resource import USBAddress
from tests.launcher.vms import a_guest
from tests.processes import ROOT

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def card(device: PCIAddress | USBAddress) -> GuestCard:
    entry = Entry(kind=EntryKind.HOST_DEVICE, name="it", wants="example.com/it")
    functions = (device,) if isinstance(device, PCIAddress) else ()
    return GuestCard(claim=Claim(entry=entry, device=device, variable=None), functions=functions, missing=None)


def test_vfio_locks_the_guests_memory_and_libvirts_reserve_once_for_all_devices() -> None:
    one, other = card(PCIAddress(0, 1, 0, 0)), card(PCIAddress(0, 2, 0, 0))
    assert to_be_locked(a_guest(), [one]) == to_be_locked(a_guest(), [one, other]) == 2 * GIB


def test_what_libvirt_rounds_up_counts() -> None:
    assert to_be_locked(a_guest(memory=GIB + 1), [card(PCIAddress(0, 1, 0, 0))]) == 2 * GIB + MIB


def test_without_dma_nothing_is_locked_and_under_sev_all() -> None:
    assert to_be_locked(a_guest(), []) == to_be_locked(a_guest(), [card(USBAddress(1, 4))]) == 0
    assert to_be_locked(a_guest(confidentiality=SEV), []) == 2 * GIB
    assert to_be_locked(a_guest(confidentiality=SEV_SNP), []) == 0


def test_a_limit_is_enough_to_the_byte() -> None:
    assert memlock(2 * GIB, 2 * GIB) is memlock(2 * GIB, None) is memlock(0, 64 * KIB) is None
    assert memlock(2 * GIB, 2 * GIB - 1) is not None


def test_what_is_missing_is_said_in_numbers_with_what_mends_it() -> None:
    said = str(memlock(256 * MIB + GIB, 2 * MIB))
    assert "1280 MiB with libvirt's reserve, and this container may lock 2 MiB" in said
    assert "the capability SYS_RESOURCE" in said
    assert "LimitMEMLOCK=infinity" in said


def limited(soft: int, hard: int, needed: int) -> list[str]:
    """What a process with these limits may lock when it has asked for as much, and without the right to raise them; and
    its limits then."""
    program = (
        "import resource\nfrom launcher.runtime.user import let_lock\n"
        f"print(let_lock({needed}), *resource.getrlimit(resource.RLIMIT_MEMLOCK))"
    )
    unable = ("setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource")
    return subprocess.run(
        [*unable, "prlimit", f"--memlock={soft}:{hard}", sys.executable, "-c", program],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip


def test_a_limit_that_is_enough_stays_and_one_that_cannot_be_raised_is_told() -> None:
    """Small figures, since no test may count on a large limit."""
    assert limited(KIB, 64 * KIB, needed=KIB) == [str(64 * KIB), str(KIB), str(64 * KIB)]
    assert limited(KIB, 64 * KIB, needed=65 * KIB) == [str(64 * KIB), str(KIB), str(64 * KIB)]


def test_what_the_process_may_raise_is_raised() -> None:
    """SEV's pages count against the soft limit of QEMU, which inherits it."""
    assert limited(KIB, 64 * KIB, needed=64 * KIB) == [str(64 * KIB)] * 3
