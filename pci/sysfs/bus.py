"""Reads whether a function still answers on the PCI bus."""

import os
from pathlib import Path

from pci.address import PCIAddress
from pci.sysfs.attribute import Unreadable, text
from pci.sysfs.functions import DEVICES

_ONES = b"\xff\xff\xff\xff"


def is_off_the_bus(sys: Path, address: PCIAddress) -> bool:
    """Whether the function's config space reads as ones while it is powered (D0): it fell off the bus, or is in reset.

    A function that sleeps is not asked, since reading would wake it; nor one whose files say nothing.
    """
    try:
        if text(sys, f"{DEVICES}/{address}/power_state") != "D0":
            return False
    except Unreadable:
        return False
    try:
        descriptor = os.open(sys / DEVICES / str(address) / "config", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, len(_ONES)) == _ONES
        finally:
            os.close(descriptor)
    except OSError:
        return False
