"""What is asked of a function only when somebody looks closely: its BARs, resets, power, what hangs on it.

The files are those of the kernel's Documentation/ABI/testing/sysfs-bus-pci.
"""

from dataclasses import dataclass
from pathlib import Path

from pci.address import PCIAddress
from pci.attribute import Unreadable, number, text
from pci.sysfs import DEVICES

#: What is read here, and so recorded.
FILES = ("boot_vga", "power_state", "reset_method", "resource", "sriov_numvfs", "sriov_totalvfs", "driver_override")

_PREFETCHABLE, _MEMORY_64 = 0x2000, 0x100000  # include/linux/ioport.h
_BARS = 6  # the first lines of `resource`; the others are the ROM, the virtual functions' BARs, bridge windows


@dataclass(frozen=True, slots=True)
class BAR:
    """A base address register: its number, its size in bytes, and how it may be mapped."""

    number: int
    size: int
    prefetchable: bool
    memory_64: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """`boot_vga`: the firmware put its screen there. `power_state`: D0, D3hot, D3cold ...; None where the kernel is
    older than 5.10. `reset_methods`: as the kernel would try them, empty where it has none, None where it is older than
    5.15. `virtual_functions`: how many are there now, of how many possible; None where it has no SR-IOV."""

    boot_vga: bool
    power_state: str | None
    reset_methods: tuple[str, ...] | None
    bars: tuple[BAR, ...]
    virtual_functions: int | None
    virtual_functions_possible: int | None
    driver_override: str | None


def read_details(sys: Path, address: PCIAddress) -> Details:
    """Read one function closely; Unreadable where something is there and makes no sense."""
    entry = f"{DEVICES}/{address}"
    methods = text(sys, f"{entry}/reset_method")
    override = text(sys, f"{entry}/driver_override")
    return Details(
        boot_vga=text(sys, f"{entry}/boot_vga") == "1",
        power_state=text(sys, f"{entry}/power_state"),
        reset_methods=None if methods is None else tuple(methods.split()),
        bars=_bars(sys, f"{entry}/resource"),
        virtual_functions=_count(sys, f"{entry}/sriov_numvfs"),
        virtual_functions_possible=_count(sys, f"{entry}/sriov_totalvfs"),
        driver_override=None if override in (None, "(null)", "") else override,
    )


def _count(sys: Path, path: str) -> int | None:
    return number(sys, path, "[0-9]{1,5}", "a number of virtual functions")


def _bars(sys: Path, path: str) -> tuple[BAR, ...]:
    """0x0000004000000000 0x0000005fffffffff 0x000000000014220c, a line each: first and last byte, flags."""
    bars: list[BAR] = []
    for line_number, line in enumerate((text(sys, path) or "").splitlines()[:_BARS]):
        try:
            start, end, flags = (int(word, 16) for word in line.split())
        except ValueError:
            raise Unreadable(path, f"holds {line[:80]!r}; expected three hexadecimal numbers") from None
        if flags:
            bars.append(BAR(line_number, end - start + 1, bool(flags & _PREFETCHABLE), bool(flags & _MEMORY_64)))
    return tuple(bars)
