"""Reads one function closely: its BARs, resets, power state, virtual functions, and whether it is still on the bus.

The files are those of the kernel's Documentation/ABI/testing/sysfs-bus-pci.
"""

from collections.abc import Iterable
from pathlib import Path

from pci.address import PCIAddress
from pci.host import BAR, Details
from pci.sysfs.attribute import CannotLook, Unreadable, content, number, text, unreadable
from pci.sysfs.bars import read_bars_at
from pci.sysfs.functions import DEVICES
from pci.sysfs.pcie import read_d3cold_allowed, read_errors, read_power_state, read_reset_methods

#: The files that read_details reads beside those of pci.sysfs.pcie; they are recorded.
DETAILS = ("resource", "sriov_numvfs", "sriov_totalvfs", "driver_override")

_ONES = b"\xff\xff\xff\xff"


def read_details(sys: Path, address: PCIAddress) -> Details:
    """Read one function closely; raise Unreadable if a file is malformed."""
    entry = f"{DEVICES}/{address}"
    override = text(sys, f"{entry}/driver_override")
    return Details(
        power_state=read_power_state(sys, address),
        reset_methods=read_reset_methods(sys, address),
        bars=read_bars(sys, address),
        virtual_functions=_count(sys, f"{entry}/sriov_numvfs"),
        driver_override=None if override in (None, "(null)", "") else override,
        errors=read_errors(sys, address),
        d3cold_allowed=read_d3cold_allowed(sys, address),
    )


def _count(sys: Path, path: str) -> int | None:
    return number(sys, path, "[0-9]{1,5}", "a number of virtual functions")


def read_bars(sys: Path, address: PCIAddress) -> tuple[BAR, ...] | None:
    """Read the BARs of one function. Return None if they were not recorded; raise Unreadable if they are malformed."""
    return read_bars_at(sys, f"{DEVICES}/{address}/resource")


def off_the_bus(sys: Path, addresses: Iterable[PCIAddress]) -> frozenset[PCIAddress]:
    """Return which of these functions fell off the bus; CannotLook if the tree cannot be read now."""
    return frozenset(address for address in addresses if is_off_the_bus(sys, address))


def is_off_the_bus(sys: Path, address: PCIAddress) -> bool:
    """Whether the function's config space reads as ones while it is powered (D0): it fell off the bus, or is in reset.

    False for a sleeping function, which reading would wake, and for a function whose files cannot be read.
    """
    config = f"{DEVICES}/{address}/config"
    try:
        if read_power_state(sys, address) != "D0":
            return False
        try:
            return content(sys, config, len(_ONES)) == _ONES
        except OSError as error:
            raise unreadable(config, error) from None
    except CannotLook:
        raise
    except Unreadable:
        return False
