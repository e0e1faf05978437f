"""Reads what drivers made below a function: sound cards, disks, partitions, network interfaces, framebuffers."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pci.address import PCIAddress, address_or_none
from pci.sysfs.attribute import Unreadable, link_name, names
from pci.sysfs.functions import DEVICES

_NVME_SUBSYSTEMS = "class/nvme-subsystem"


@dataclass(frozen=True, slots=True)
class Part:
    """A directory that a driver made below a function: its path below /sys, its name (`card0`, `nvme0n1p2`), its
    subsystem (`drm`, `block`), and the path of its device file below /dev."""

    path: str
    name: str
    subsystem: str | None
    node: str | None


def read_parts(sys: Path, address: PCIAddress) -> Iterator[Part]:
    """Read the parts of a function, in a fixed order; raise Unreadable if one cannot be read."""
    for part in _parts_below(sys, f"{DEVICES}/{address}"):
        yield part
        if part.subsystem == "nvme":
            # With multipath the disks are the subsystem's, which several controllers may lead to.
            for subsystem in names(sys, _NVME_SUBSYSTEMS):
                if part.name in names(sys, f"{_NVME_SUBSYSTEMS}/{subsystem}"):
                    yield from _parts_below(sys, f"{_NVME_SUBSYSTEMS}/{subsystem}")


def _parts_below(sys: Path, top: str) -> Iterator[Part]:
    for directory, below, files in os.walk(sys / top):
        below[:] = sorted(name for name in below if address_or_none(name) is None)
        path = str(Path(directory).relative_to(sys))
        name = path.rpartition("/")[2]
        if name == "net" and not below:
            yield Part(path, name, subsystem="net", node=None)  # others' network namespaces are left out here
        if path != top and "uevent" in files:
            yield Part(path, name, link_name(sys, f"{path}/subsystem"), _node(sys, f"{path}/uevent"))


def _node(sys: Path, path: str) -> str | None:
    try:
        # A device's own name for itself may stand there too, in any encoding.
        uevent = (sys / path).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unreadable(path, f"cannot be read: {error.strerror}") from None
    match = re.search(r"^DEVNAME=(\S+)$", uevent, re.MULTILINE)
    return None if match is None else match[1]
