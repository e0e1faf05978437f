"""Reads what PCI Express says of one function: its link, its counters of errors (AER), its resets, its power state.

The files are those of the kernel's Documentation/ABI/testing/sysfs-bus-pci and sysfs-bus-pci-devices-aer. Nothing here
wakes a sleeping function, and every file but `config` can be read without rights.
"""

import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pci.address import PCIAddress
from pci.host import Errors, Link, PeerToPeer
from pci.sysfs.attribute import DEVICES, CannotLook, Unreadable, content, number, text, unreadable

#: Each counter's file, and the name of the total in it.
_ERRORS = {
    "aer_dev_correctable": "TOTAL_ERR_COR",
    "aer_dev_nonfatal": "TOTAL_ERR_NONFATAL",
    "aer_dev_fatal": "TOTAL_ERR_FATAL",
}
#: The files that are read here, and recorded.
PCIE = (
    "power_state",
    "reset_method",
    "d3cold_allowed",
    "current_link_speed",
    "current_link_width",
    "max_link_speed",
    "max_link_width",
    *_ERRORS,
)

_CONFIG_SPACE, _EXTENDED = 4096, 0x100
_ACS, _ATS, _ATS_ENABLE = 0x000D, 0x000F, 0x8000  # include/uapi/linux/pci_regs.h
_WORD, _DOUBLE_WORD = struct.Struct("<H"), struct.Struct("<I")
_UNKNOWN_WIDTHS = (0, 255)  # of a link that is down; if nothing answers


def read_power_state(sys: Path, address: PCIAddress) -> str | None:
    """Read D0, D3hot, D3cold, unknown or error; None before Linux 5.10."""
    return text(sys, f"{DEVICES}/{address}/power_state")


def read_reset_methods(sys: Path, address: PCIAddress) -> tuple[str, ...] | None:
    """Read the resets, in the order in which the kernel tries them: `flr`, `pm`, `bus` ...; empty if the admin took all
    away; None if the function has none, or before Linux 5.15."""
    methods = text(sys, f"{DEVICES}/{address}/reset_method")
    return None if methods is None else tuple(methods.split())


def read_d3cold_allowed(sys: Path, address: PCIAddress) -> bool | None:
    """Read whether the kernel may take the function's power away while it sleeps; None for a kernel without ACPI."""
    allowed = number(sys, f"{DEVICES}/{address}/d3cold_allowed", "[01]", "0 or 1")
    return None if allowed is None else allowed == 1


def read_errors(sys: Path, address: PCIAddress) -> Errors | None:
    """Read how many errors the kernel has counted since it found the function. None if it counts none: a function
    without AER (a virtual one), a kernel without CONFIG_PCIEAER, a firmware that keeps AER for itself."""
    totals = [_total(sys, f"{DEVICES}/{address}/{file}", name) for file, name in _ERRORS.items()]
    correctable, nonfatal, fatal = totals
    if correctable is None or nonfatal is None or fatal is None:
        return None
    return Errors(correctable, nonfatal, fatal)


def read_errors_of_all(sys: Path, addresses: Iterable[PCIAddress]) -> Mapping[PCIAddress, Errors]:
    """Read the errors of these functions, leaving out functions that have no counters or cannot be read; CannotLook if
    nothing can be read in this tree now."""
    counted = {}
    for address in addresses:
        try:
            errors = read_errors(sys, address)
        except CannotLook:
            raise
        except Unreadable:
            continue
        if errors is not None:
            counted[address] = errors
    return counted


def read_link(sys: Path, address: PCIAddress) -> Link | None:
    """Read the link above a function. None for a function without one, and for one that sleeps, since newer kernels
    wake it for these files (pci_config_pm_runtime_get in drivers/pci/pci-sysfs.c)."""
    if read_power_state(sys, address) not in (None, "D0"):
        return None
    speed, most = (_speed(sys, f"{DEVICES}/{address}/{which}_link_speed") for which in ("current", "max"))
    lanes, most_lanes = (_lanes(sys, f"{DEVICES}/{address}/{which}_link_width") for which in ("current", "max"))
    link = Link(speed=speed, lanes=lanes, max_speed=most, max_lanes=most_lanes)
    return None if link == Link(None, None, None, None) else link


def read_peer_to_peer(sys: Path, address: PCIAddress) -> PeerToPeer | None:
    """Read ACS and ATS from a function's config space; None for a function that sleeps, and where only the first 64
    bytes can be read: the kernel shows the rest to CAP_SYS_ADMIN alone (pci_read_config in drivers/pci/pci-sysfs.c)."""
    if read_power_state(sys, address) not in (None, "D0"):
        return None
    path = f"{DEVICES}/{address}/config"
    try:
        config = content(sys, path, _CONFIG_SPACE)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from None
    if len(config) <= _EXTENDED:
        return None
    acs = ats = None
    for capability, at in _extended_capabilities(config):
        if capability == _ACS:
            (acs,) = _WORD.unpack_from(config, at + 6)
        elif capability == _ATS:
            ats = bool(_WORD.unpack_from(config, at + 6)[0] & _ATS_ENABLE)
    return PeerToPeer(acs, ats)


def _extended_capabilities(config: bytes) -> Iterator[tuple[int, int]]:
    """Yield each extended capability and where it is (PCI Express Base Specification, 7.6.3); each place once."""
    at, seen = _EXTENDED, set[int]()
    while _EXTENDED <= at <= len(config) - 8 and at not in seen:
        seen.add(at)
        (header,) = _DOUBLE_WORD.unpack_from(config, at)
        yield header & 0xFFFF, at
        at = header >> 20 & 0xFFC


def _total(sys: Path, path: str, name: str) -> int | None:
    """Read a counter's last line; each line has the name of an error and how often it was seen (aer_stats_dev_attr in
    drivers/pci/pcie/aer.c)."""
    lines = text(sys, path)
    if lines is None:
        return None
    match = re.search(rf"^{name} ([0-9]{{1,20}})$", lines, re.MULTILINE | re.ASCII)
    if match is None:
        raise Unreadable(path, f"expected a line {name} with a number")
    return int(match[1])


def _speed(sys: Path, path: str) -> float | None:
    """Read GT/s from `16.0 GT/s PCIe`, or `8 GT/s` as older kernels write it; None for `Unknown`."""
    words = text(sys, path)
    if words is None or words.startswith("Unknown"):
        return None
    match = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9])?) GT/s(?: PCIe)?", words, re.ASCII)
    if match is None:
        raise Unreadable(path, f"holds {words[:80]!r}; expected a speed, like 16.0 GT/s PCIe")
    return float(match[1])


def _lanes(sys: Path, path: str) -> int | None:
    width = number(sys, path, "[0-9]{1,3}", "a number of lanes")
    return None if width in _UNKNOWN_WIDTHS else width
