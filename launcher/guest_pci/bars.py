"""Room for large BARs: how much of the guest's address space the cards' memory needs, and where that ends.

A card with all its memory in one BAR (64 GiB of an A100 of 40 GB, 128 GiB of an H100, 256 GiB of a B200) does not fit
into what a guest has for 64-bit BARs unless asked: 32 GiB, to QEMU and to OVMF. A BAR lies at a multiple of its size,
and a bridge's window is a multiple of the largest BAR in it, so 64 GiB and 32 MiB behind one port take 128 GiB.

What QEMU, SeaBIOS and OVMF do, where that was seen, and what is asked of each: docs/decisions/0019-large-bars.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.guest_pci.addresses import Layout
from launcher.hostdevs import GuestCard
from pci.address import PCIAddress
from pci.host import BAR
from pci.sysfs.attribute import Unreadable
from pci.sysfs.details import read_bars as read_bars_of
from program.errors import Refusal

GIB = 1 << 30
#: What there is unasked: QEMU's pci-hole64-size of q35 and OVMF's PcdPciMmio64Size.
_DEFAULT = 32 * GIB
#: For the bridges and devices on bus 0 that are no cards; each takes a few MiB.
_OTHERS = 1 * GIB
#: The bits of a guest's physical addresses unasked, and all that QEMU's own CPU has (QEMU, target/i386/cpu.h).
DEFAULT_BITS = 40
#: OVMF takes no more for its window: OvmfPkg/Library/PlatformInitLib/MemDetect.c.
MOST_OF_OVMF = 1 << 44
#: From 1012 GiB to 1 TiB an AMD IOMMU maps nothing. QEMU moves the memory of a guest with an AMD CPU to 1 TiB where its
#: hole would reach into that (AMD_HT_START in hw/i386/pc.c); the guest's maker is not known here, so it counts for all.
_HYPERTRANSPORT, _BEHIND_HYPERTRANSPORT = 1012 * GIB, 1024 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """The part of the guest's address space that 64-bit BARs are in, in bytes.

    `window` is what firmware needs for all BARs; `size` is QEMU's, from the end of the guest's memory on, and so has
    the gap in it that firmware leaves for alignment; `end` is the first address behind it, wherever QEMU puts it.
    """

    window: int
    size: int
    end: int

    @property
    def address_bits(self) -> int:
        """How many a guest's physical addresses need, for it to reach all of the hole."""
        return (self.end - 1).bit_length()


def read_bars(sys: Path | None, cards: tuple[GuestCard, ...]) -> Mapping[PCIAddress, tuple[BAR, ...]]:
    """The BARs of every function that is passed on, where the tree that stands for /sys has them.

    Refusal where it has them, and they make no sense.
    """
    if sys is None:
        return {}
    try:
        bars_of = {address: read_bars_of(sys, address) for card in cards for address in card.functions}
    except Unreadable as error:
        raise Refusal(sys, str(error), "for a bug report: gpu-plugin record DIR") from error
    return {address: bars for address, bars in bars_of.items() if bars is not None}


def needed(layout: Layout, bars: Mapping[PCIAddress, tuple[BAR, ...]], *, memory: int, is_efi: bool) -> Hole | None:
    """The hole that the cards' BARs need beside the guest's `memory`, in bytes; None where the default is enough, as
    far as BARs are known.

    Counted are 64-bit prefetchable ones: no other can be above 4 GiB behind a bridge.
    """
    cards, largest = _windows(layout, bars)
    window = _up(cards + _OTHERS, GIB)
    if window <= _DEFAULT:
        return None
    # OVMF's window begins at a multiple of the largest BAR that it could have, SeaBIOS's at one of the largest it has.
    align = 1 << (window.bit_length() - 1) if is_efi else largest
    above = above_4_gib(memory)
    start = 4 * GIB + above
    end = _up(start, align) + window
    size = end - start
    # SeaBIOS from 1.16.3 on has its window at the top of the addresses, or as much lower where it meets that range.
    if (end if is_efi else end + window) > _HYPERTRANSPORT:
        moved = _BEHIND_HYPERTRANSPORT + above
        end = max(_up(moved, align) + window, moved + size)
    return Hole(window=window, size=size, end=end)


def seats_with_io(layout: Layout, bars: Mapping[PCIAddress, tuple[BAR, ...]]) -> int:
    """How many seats have I/O ports: the ports of a bridge are 4 KiB at least, and all bridges' have to fit into 64."""
    return sum(
        any(
            bar.is_io
            for device in seat.hostdevs
            if isinstance(device.source, PCIAddress)
            for bar in bars.get(device.source, ())
        )
        for seat in layout.seats
    )


def ovmf_window(hole: Hole) -> int | None:
    """What OVMF is told that its window should have, in MiB; None where it would not believe it."""
    return hole.window >> 20 if hole.window <= MOST_OF_OVMF else None


def above_4_gib(memory: int) -> int:
    """How much of a q35 machine's memory is there: all but 2 GiB where it has 2.75 or more (pc_q35_init of QEMU's
    hw/i386/pc_q35.c), in whole GiB, as its hole begins."""
    return _up(memory - 2 * GIB, GIB) if memory >= 0xB0000000 else 0


def _windows(layout: Layout, bars: Mapping[PCIAddress, tuple[BAR, ...]]) -> tuple[int, int]:
    """What the windows of all cards take together in bytes, and the largest alignment among them."""
    # Of a bus: size and alignment of each BAR, and of each window, that is on it.
    on: dict[int, list[tuple[int, int]]] = {0: [], **{bridge.index: [] for bridge in layout.bridges}}
    for seat in layout.seats:
        for device in seat.hostdevs:
            known = bars.get(device.source, ()) if isinstance(device.source, PCIAddress) else ()
            on[seat.bus] += [(bar.size, bar.size) for bar in known if bar.prefetchable and bar.memory_64]
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
