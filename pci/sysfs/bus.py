"""Reads whether a function still answers on the PCI bus."""

from collections.abc import Iterable
from pathlib import Path

from pci.address import PCIAddress
from pci.sysfs.attribute import CannotLook, Unreadable, content, text, unreadable
from pci.sysfs.functions import DEVICES

_ONES = b"\xff\xff\xff\xff"


def off_the_bus(sys: Path, addresses: Iterable[PCIAddress]) -> frozenset[PCIAddress]:
    """Return which of these functions fell off the bus; CannotLook if the tree cannot be read now."""
    return frozenset(address for address in addresses if is_off_the_bus(sys, address))


def is_off_the_bus(sys: Path, address: PCIAddress) -> bool:
    """Whether the function's config space reads as ones while it is powered (D0): it fell off the bus, or is in reset.

    False for a sleeping function, which reading would wake, and for a function whose files cannot be read.
    """
    config = f"{DEVICES}/{address}/config"
    try:
        if text(sys, f"{DEVICES}/{address}/power_state") != "D0":
            return False
        try:
            return content(sys, config, len(_ONES)) == _ONES
        except OSError as error:
            raise unreadable(config, error) from None
    except CannotLook:
        raise
    except Unreadable:
        return False
