"""Reads the BARs of one function from its file `resource`."""

from pathlib import Path

from pci.host import BAR
from pci.sysfs.attribute import Unreadable, text

_IO, _MEMORY, _PREFETCHABLE, _MEMORY_64, _UNSET = 0x100, 0x200, 0x2000, 0x100000, 0x20000000  # include/linux/ioport.h
_BARS = 6  # the first lines of `resource`; the others are the ROM, the virtual functions' BARs, bridge windows


def read_bars_at(sys: Path, path: str) -> tuple[BAR, ...] | None:
    """Read the BARs in the file `path`. Return None if it was not recorded; raise Unreadable if it is malformed.

    The file has a line each, first byte, last byte and flags: 0x0000004000000000 0x0000005fffffffff 0x000000000014220c.
    """
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
                    # The kernel puts a BAR without a place at 0 (__pci_read_base in drivers/pci/probe.c).
                    assigned=not flags & _MEMORY or (start != 0 and not flags & _UNSET),
                    is_io=bool(flags & _IO),
                )
            )
    return tuple(bars)
