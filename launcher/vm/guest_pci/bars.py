"""Room for large BARs: the 64-bit hole that the domain asks for, and why a guest may not get all BARs.

A card with all its memory in one BAR (64 GiB of an A100 of 40 GB, 128 GiB of an H100, 256 GiB of a B200) does not fit
into the default of QEMU and OVMF for 64-bit BARs, 32 GiB. A BAR lies at a multiple of its size, and a bridge's window
is a multiple of the largest BAR in it, so 64 GiB and 32 MiB behind one port take 128 GiB.

What QEMU, SeaBIOS and OVMF do, where that was seen, and what is asked of each: docs/decisions/0002-guest-pci.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.vm.cards.guest import GuestCard
from launcher.vm.facts import Facts
from launcher.vm.guest import Guest
from launcher.vm.guest_pci.addresses import HostDev, Layout
from pci.address import PCIAddress
from pci.host import BAR
from pci.sysfs.attribute import Unreadable
from pci.sysfs.details import read_bars as read_bars_of
from program.errors import Refusal, UserError
from program.problem import Problem

GIB = 1 << 30
#: By default: QEMU's pci-hole64-size of q35 and OVMF's PcdPciMmio64Size.
_DEFAULT = 32 * GIB
#: For bridges, and for other devices on bus 0 than cards; each takes a few MiB.
_OTHERS = 1 * GIB
#: The bits of a guest's physical addresses by default, and all that QEMU's own CPU has (QEMU, target/i386/cpu.h).
DEFAULT_BITS = 40
#: OVMF takes no more for its window: OvmfPkg/Library/PlatformInitLib/MemDetect.c.
_MOST_OF_OVMF = 1 << 44
#: VIRT_HIGH_PCIE_MMIO in QEMU's hw/arm/virt.c: the window of an arm64 machine, which nothing here sizes.
_ARM64_WINDOW = 512 * GIB
#: Seen with one card a seat and nothing else with I/O ports behind a bridge (docs/guest-pci.md). With one more, OVMF
#: 2022.11 gives no device any address, and SeaBIOS 1.16.2 stops.
_MOST_WITH_IO = {"efi": ("OVMF", 9), "bios": ("SeaBIOS", 14)}
#: From 1012 GiB to 1 TiB an AMD IOMMU maps nothing. QEMU moves the memory of a guest with an AMD CPU to 1 TiB where its
#: hole would reach into that (AMD_HT_START in hw/i386/pc.c); the guest's maker is not known here, so it counts for all.
_HYPERTRANSPORT, _BEHIND_HYPERTRANSPORT = 1012 * GIB, 1024 * GIB
_FEWER = "expected fewer such cards"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """The part of the guest's address space that 64-bit BARs are in, in bytes.

    `window`: what firmware needs for all BARs. `size`: QEMU's, from the end of the guest's memory on, with the gap that
    firmware leaves for alignment. `end`: the first address behind it, wherever QEMU puts the hole.
    """

    window: int
    size: int
    end: int

    @property
    def address_bits(self) -> int:
        """Return the bits that a guest's physical addresses need to reach all of the hole."""
        return (self.end - 1).bit_length()


#: Of a guest without one. Seen: SeaBIOS then has all BARs below 4 GiB; OVMF 2022.11 makes its own window all the same.
NO_HOLE = Hole(window=0, size=0, end=4 * GIB)


def read_bars(sys: Path | None, cards: tuple[GuestCard, ...]) -> Mapping[PCIAddress, tuple[BAR, ...]]:
    """Read the BARs of every function that is passed on, by its address on the host; `sys` stands for /sys. A function
    without recorded BARs is left out; Refusal if they are malformed."""
    if sys is None:
        return {}
    try:
        bars_of = {address: read_bars_of(sys, address) for card in cards for address in card.functions}
    except Unreadable as error:
        raise Refusal(sys, str(error), "for a bug report: gpu-plugin record DIR") from error
    return {address: bars for address, bars in bars_of.items() if bars is not None}


def without_hole(guest: Guest, layout: Layout, facts: Facts) -> Hole | None:
    """Return NO_HOLE; None for an arm64 guest, which keeps its hole, as with KubeVirt. UserError if the known BARs take
    more than there is below 4 GiB."""
    if guest.architecture != "amd64":
        return None
    cards, _ = _windows(layout, facts)
    if cards >= GIB:
        wrong = f"takes away the guest's addresses above 4 GiB, and the cards' BARs need {-(-cards // GIB)} GiB of them"
        raise UserError("metadata.annotations", f"kubevirt.io/disablePCIHole64 {wrong}", "leave it out")
    return NO_HOLE


def hole(guest: Guest, layout: Layout, facts: Facts) -> tuple[Hole | None, tuple[Problem, ...]]:
    """Return the hole that the domain asks for, None if it needs none or cannot have it; and why the guest may not get
    all BARs."""
    wanted = needed(guest, layout, facts)
    warnings = (*_of_io(guest, layout, facts), *_of_memory(guest, wanted, facts))
    if wanted is None or guest.architecture != "amd64" or _beyond_emulation(wanted, facts):
        return None, warnings
    return wanted, warnings


def needed(guest: Guest, layout: Layout, facts: Facts) -> Hole | None:
    """Return the hole that the known BARs need beside the guest's memory; None if the default is large enough.

    Only 64-bit prefetchable BARs count: no other can be above 4 GiB behind a bridge.
    """
    cards, largest = _windows(layout, facts)
    window = _up(cards + _OTHERS, GIB)
    if window <= _DEFAULT:
        return None
    # OVMF's window begins at a multiple of the largest BAR that it could have, SeaBIOS's at one of the largest it has.
    align = 1 << (window.bit_length() - 1) if guest.is_efi else largest
    above = _above_4_gib(guest.memory)
    start = 4 * GIB + above
    end = _up(start, align) + window
    size = end - start
    # SeaBIOS from 1.16.3 on has its window at the top of the addresses, or as much lower where it meets that range.
    if (end if guest.is_efi else end + window) > _HYPERTRANSPORT:
        moved = _BEHIND_HYPERTRANSPORT + above
        end = max(_up(moved, align) + window, moved + size)
    return Hole(window=window, size=size, end=end)


def ovmf_window(hole: Hole) -> int | None:
    """Return the window to ask OVMF for, in MiB; None if there is none, or it is more than OVMF accepts."""
    return hole.window >> 20 if 0 < hole.window <= _MOST_OF_OVMF else None


def _of_io(guest: Guest, layout: Layout, facts: Facts) -> tuple[Problem, ...]:
    # The I/O ports of a bridge are 4 KiB at least, and those of all bridges have to fit into 64.
    cards = sum(any(bar.is_io for device in seat.hostdevs for bar in _of(device, facts)) for seat in layout.seats)
    firmware, most = _MOST_WITH_IO["efi" if guest.is_efi else "bios"]
    if cards <= most:
        return ()
    return (_problem(f"{cards} cards have I/O ports, and {firmware} has room for those of {most}", _FEWER),)


def _of_memory(guest: Guest, wanted: Hole | None, facts: Facts) -> tuple[Problem, ...]:
    if wanted is None:
        return ()
    wants = f"need {wanted.window // GIB} GiB of the guest's addresses"
    if guest.architecture != "amd64":
        if wanted.window <= _ARM64_WINDOW:
            return ()
        return (_problem(f"{wants}, and an arm64 machine has {_ARM64_WINDOW // GIB}", _FEWER),)
    warnings = []
    if _beyond_emulation(wanted, facts):
        wrong = f"{wants}, more than QEMU's own CPU can have with its {DEFAULT_BITS} address bits"
        warnings.append(_problem(wrong, "expected KVM"))
    elif facts.kvm and facts.address_bits is not None and facts.address_bits < wanted.address_bits:
        bits = f"{wanted.address_bits} address bits, and this node's CPUs have {facts.address_bits}"
        fix = f"{_FEWER}, or a node whose `address sizes` in /proc/cpuinfo are larger"
        warnings.append(_problem(f"{wants}, which takes {bits}", fix))
    if not guest.is_efi:
        if _above_4_gib(guest.memory):
            wrong = f"{wants}, and SeaBIOS 1.16.3 (Debian 13) puts such BARs on top of each other"
            warnings.append(_problem(wrong, "expected EFI"))
    elif wanted.window > _MOST_OF_OVMF:
        warnings.append(_problem(f"{wants}, and EFI has {_MOST_OF_OVMF // GIB} at most", _FEWER))
    return tuple(warnings)


def _problem(wrong: str, fix: str) -> Problem:
    return Problem("the cards' BARs", wrong, fix)


def _beyond_emulation(hole: Hole, facts: Facts) -> bool:
    return not facts.kvm and hole.address_bits > DEFAULT_BITS


def _above_4_gib(memory: int) -> int:
    """Return how much of a q35 machine's memory is above 4 GiB, in whole GiB, since the hole begins at one: all but
    2 GiB of a memory of 2.75 GiB or more (pc_q35_init of QEMU's hw/i386/pc_q35.c)."""
    return _up(memory - 2 * GIB, GIB) if memory >= 0xB0000000 else 0


def _of(device: HostDev, facts: Facts) -> tuple[BAR, ...]:
    """Return the known BARs of a device."""
    return facts.bars.get(device.source, ()) if isinstance(device.source, PCIAddress) else ()


def _windows(layout: Layout, facts: Facts) -> tuple[int, int]:
    """Return the bytes that the windows of all cards take together, and the largest alignment among them."""
    # By bus: size and alignment of each BAR and each window on it.
    on: dict[int, list[tuple[int, int]]] = {0: [], **{bridge.index: [] for bridge in layout.bridges}}
    for seat in layout.seats:
        for device in seat.hostdevs:
            on[seat.bus] += [(bar.size, bar.size) for bar in _of(device, facts) if bar.prefetchable and bar.memory_64]
    roots: list[tuple[int, int]] = []
    # A bridge's index is above that of the one that it is behind.
    for bridge in sorted(layout.bridges, key=lambda bridge: bridge.index, reverse=True):
        if not on[bridge.index]:
            continue
        align = max(align for _, align in on[bridge.index])
        window = _up(sum(size for size, _ in on[bridge.index]), align), align
        (roots if bridge.model == "pcie-expander-bus" else on[bridge.address.bus]).append(window)
    largest = max((align for _, align in on[0] + roots), default=0)
    gaps = 0
    if roots:
        # OVMF places each root bus by itself, in no order of sizes, at the next multiple of the largest on it.
        gaps = sum(align for _, align in roots) + max((align for _, align in on[0]), default=0)
    return gaps + sum(size for size, _ in on[0] + roots), largest


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
