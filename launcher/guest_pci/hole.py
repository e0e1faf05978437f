"""The 64-bit hole that the domain asks for, and what speaks against the cards' BARs being in it."""

from launcher.facts import Facts
from launcher.guest import Guest
from launcher.guest_pci.addresses import Layout
from launcher.guest_pci.bars import DEFAULT_BITS, GIB, MOST_OF_OVMF, Hole, above_4_gib, needed, seats_with_io
from program.problem import Problem

_FEWER = "expected fewer such cards"
#: VIRT_HIGH_PCIE_MMIO in QEMU's hw/arm/virt.c: the window of an arm64 machine, which nothing here sizes.
_ARM64_WINDOW = 512 * GIB
#: Seen with one card a seat and nothing else with I/O ports behind a bridge (docs/guest-pci.md). With one more, OVMF
#: 2022.11 gives no device any address, and SeaBIOS 1.16.2 stops.
_MOST_WITH_IO = {"efi": ("OVMF", 9), "bios": ("SeaBIOS", 14)}


def hole(guest: Guest, layout: Layout, facts: Facts) -> tuple[Hole | None, tuple[Problem, ...]]:
    """The hole that the domain asks for, and why the guest may not get all BARs.

    None where none is needed, and where none that is needed can be had; empty where nothing speaks against it.
    """
    wanted = needed(layout, facts.bars, memory=guest.memory, is_efi=guest.is_efi)
    warnings = (*_of_io(guest, layout, facts), *_of_memory(guest, wanted, facts))
    if wanted is None or guest.architecture != "amd64" or _beyond_emulation(wanted, facts):
        return None, warnings
    return wanted, warnings


def _of_io(guest: Guest, layout: Layout, facts: Facts) -> tuple[Problem, ...]:
    firmware, most = _MOST_WITH_IO["efi" if guest.is_efi else "bios"]
    cards = seats_with_io(layout, facts.bars)
    if cards <= most:
        return ()
    return (_bars(f"{cards} cards have I/O ports, and {firmware} has room for those of {most}", _FEWER),)


def _of_memory(guest: Guest, wanted: Hole | None, facts: Facts) -> tuple[Problem, ...]:
    if wanted is None:
        return ()
    wants = f"need {wanted.window // GIB} GiB of the guest's addresses"
    if guest.architecture != "amd64":
        if wanted.window <= _ARM64_WINDOW:
            return ()
        return (_bars(f"{wants}, and an arm64 machine has {_ARM64_WINDOW // GIB}", _FEWER),)
    warnings = []
    if _beyond_emulation(wanted, facts):
        wrong = f"{wants}, more than QEMU's own CPU can have with its {DEFAULT_BITS} address bits"
        warnings.append(_bars(wrong, "expected KVM"))
    elif facts.kvm and facts.address_bits is not None and facts.address_bits < wanted.address_bits:
        bits = f"{wanted.address_bits} address bits, and this node's CPUs have {facts.address_bits}"
        fix = f"{_FEWER}, or a node whose `address sizes` in /proc/cpuinfo are larger"
        warnings.append(_bars(f"{wants}, which takes {bits}", fix))
    if not guest.is_efi:
        if above_4_gib(guest.memory):
            wrong = f"{wants}, and SeaBIOS 1.16.3 (Debian 13) puts such BARs on top of each other"
            warnings.append(_bars(wrong, "expected EFI"))
    elif wanted.window > MOST_OF_OVMF:
        warnings.append(_bars(f"{wants}, and EFI has {MOST_OF_OVMF // GIB} at most", _FEWER))
    return tuple(warnings)


def _bars(wrong: str, fix: str) -> Problem:
    return Problem("the cards' BARs", wrong, fix)


def _beyond_emulation(hole: Hole, facts: Facts) -> bool:
    return not facts.kvm and hole.address_bits > DEFAULT_BITS
