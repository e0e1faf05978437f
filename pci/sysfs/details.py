"""Reads of a function what is asked only when somebody looks closely: its BARs, resets, power, virtual functions.

The files are those of the kernel's Documentation/ABI/testing/sysfs-bus-pci.
"""

from pathlib import Path

from pci.address import PCIAddress
from pci.host import BAR, Details
from pci.sysfs.attribute import Unreadable, number, text
from pci.sysfs.functions import DEVICES

#: What is read here, and so recorded.
DETAILS = ("power_state", "reset_method", "resource", "sriov_numvfs", "sriov_totalvfs", "driver_override")

_IO, _MEMORY, _PREFETCHABLE, _MEMORY_64, _UNSET = 0x100, 0x200, 0x2000, 0x100000, 0x20000000  # include/linux/ioport.h
_BARS = 6  # the first lines of `resource`; the others are the ROM, the virtual functions' BARs, bridge windows


def read_details(sys: Path, address: PCIAddress) -> Details:
    """Read one function closely; raise Unreadable if a file is malformed."""
    entry = f"{DEVICES}/{address}"
    methods = text(sys, f"{entry}/reset_method")
    override = text(sys, f"{entry}/driver_override")
    return Details(
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
    """Read the BARs of one function. Return None if `resource` was not recorded; raise Unreadable if it is malformed.

    The file has a line each, first byte, last byte and flags: 0x0000004000000000 0x0000005fffffffff 0x000000000014220c.
    """
    path = f"{DEVICES}/{address}/resource"
    lines = text(sys, path)
    if lines is None:
        return None
    bars: list[BAR] = []
    for line_number, line in enumerate(lines.splitlines()[:_BARS]):
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
