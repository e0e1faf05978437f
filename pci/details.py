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

_IO, _MEMORY, _PREFETCHABLE, _MEMORY_64, _UNSET = 0x100, 0x200, 0x2000, 0x100000, 0x20000000  # include/linux/ioport.h
_BARS = 6  # the first lines of `resource`; the others are the ROM, the virtual functions' BARs, bridge windows


@dataclass(frozen=True, slots=True)
class BAR:
    """A base address register: its number, its size in bytes, how it may be mapped, and whether it is at all: one of
    memory for which the kernel found no place is not `assigned`. `is_io`: it is of I/O ports, and not of memory."""

    number: int
    size: int
    prefetchable: bool
    memory_64: bool
    assigned: bool
    is_io: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """`boot_vga`: the firmware put its screen there. `power_state`: D0, D3hot, D3cold ...; None where the kernel is
    older than 5.10. `reset_methods`: as the kernel would try them, empty where the admin took all away; None where it
    has none at all, or the kernel is older than 5.15 (pci_dev_reset_method_attr_is_visible in drivers/pci/pci.c).
    `bars`: None where they were not recorded. `virtual_functions`: how many are there now, of how many possible; None
    where it has no SR-IOV."""

    boot_vga: bool
    power_state: str | None
    reset_methods: tuple[str, ...] | None
    bars: tuple[BAR, ...] | None
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
        bars=read_bars(sys, address),
        virtual_functions=_count(sys, f"{entry}/sriov_numvfs"),
        virtual_functions_possible=_count(sys, f"{entry}/sriov_totalvfs"),
        driver_override=None if override in (None, "(null)", "") else override,
    )


def _count(sys: Path, path: str) -> int | None:
    return number(sys, path, "[0-9]{1,5}", "a number of virtual functions")


def read_bars(sys: Path, address: PCIAddress) -> tuple[BAR, ...] | None:
    """Of one function; None where they were not recorded, Unreadable where they make no sense.

    0x0000004000000000 0x0000005fffffffff 0x000000000014220c, a line each: first and last byte, flags.
    """
    path = f"{DEVICES}/{address}/resource"
    found = text(sys, path)
    if found is None:
        return None
    bars: list[BAR] = []
    for line_number, line in enumerate(found.splitlines()[:_BARS]):
        try:
            start, end, flags = (int(word, 16) for word in line.split())
        except ValueError:
            raise Unreadable(path, f"holds {line[:80]!r}; expected three hexadecimal numbers") from None
        if flags:
            bars.append(
                BAR(
                    number=line_number,
                    size=end - start + 1,
                    prefetchable=bool(flags & _PREFETCHABLE),
                    memory_64=bool(flags & _MEMORY_64),
                    # The kernel puts what has no place yet at 0 (__pci_read_base in drivers/pci/probe.c).
                    assigned=not flags & _MEMORY or (start != 0 and not flags & _UNSET),
                    is_io=bool(flags & _IO),
                )
            )
    return tuple(bars)
