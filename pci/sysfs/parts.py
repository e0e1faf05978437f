"""Reads what drivers made below a function: sound cards, disks, partitions, network interfaces, framebuffers."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pci.address import PCIAddress, address_or_none
from pci.sysfs.attribute import content, link_name, names, unreadable
from pci.sysfs.functions import DEVICES

_NVME_SUBSYSTEMS = "class/nvme-subsystem"


@dataclass(frozen=True, slots=True)
class Part:
    """A directory that a driver made below a function: its path below /sys, its name (`card0`, `nvme0n1p2`), its
    subsystem (`drm`, `block`), the path of its device file below /dev, and major and minor of that device's number."""

    path: str
    name: str
    subsystem: str | None
    node: str | None
    number: tuple[int, int] | None


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
            # Interfaces in other network namespaces are left out here.
            yield Part(path, name, subsystem="net", node=None, number=None)
        if path != top and "uevent" in files:
            uevent = _uevent(sys, f"{path}/uevent")
            node = re.search(r"^DEVNAME=(\S+)$", uevent, re.MULTILINE)
            number = re.search(r"^MAJOR=([0-9]+)\nMINOR=([0-9]+)$", uevent, re.MULTILINE | re.ASCII)
            yield Part(
                path,
                name,
                link_name(sys, f"{path}/subsystem"),
                node=None if node is None else node[1],
                number=None if number is None else (int(number[1]), int(number[2])),
            )


def _uevent(sys: Path, path: str) -> str:
    try:
        # The file may also have the device's own name, in any encoding.
        return content(sys, path).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise unreadable(path, error) from None
