"""Reads which parts a card is cut into, and which can still be made of it.

NVIDIA's files are those of its vendor-specific VFIO framework (vGPU 17 on Linux 6.8 and later). The others are in the
kernel's Documentation/ABI/testing: sysfs-bus-vfio-mdev, sysfs-driver-intel-xe-sriov, sysfs-bus-pci for SR-IOV.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pci.address import PCIAddress
from pci.host import Function, Host
from pci.sysfs.attribute import Unreadable, names, number, text
from pci.sysfs.functions import DEVICES, MDEV_TYPES, VGPU_TYPE, VGPU_TYPES, read_host, types_listed
from pci.vgpus import CutCard, MdevType, Place

AUTOPROBE, COUNT, POSSIBLE = "sriov_drivers_autoprobe", "sriov_numvfs", "sriov_totalvfs"
#: xe's files of a virtual function's quotas, in `quota_directory`.
QUOTAS = ("vram_quota", "exec_quantum_ms", "preempt_timeout_us")
#: The files of a function that are read only here, as patterns: `gpu-plugin record` copies them.
PATTERNS = (
    AUTOPROBE,
    f"{MDEV_TYPES}/*/name",
    f"{MDEV_TYPES}/*/available_instances",
    *(f"sriov_admin/vf*/profile/{name}" for name in QUOTAS),
)


def quota_directory(card: PCIAddress, function: int) -> str:
    """Return where xe has the quotas of a virtual function, numbered from 1: it is there before the function is."""
    return f"{DEVICES}/{card}/sriov_admin/vf{function}/profile"


def read_card(sys: Path, card: PCIAddress) -> CutCard:
    """Read a card anew, and its node; Unreadable if it is gone, or one of its files is malformed."""
    host = read_host(sys)
    if card not in host.functions:
        raise Unreadable(f"{DEVICES}/{card}", "is gone, or cannot be read")
    return cut_card(sys, host, host.functions[card])


def cut_card(sys: Path, host: Host, function: Function) -> CutCard:
    """Read the card of this physical function of `host`; Unreadable if one of its files is malformed."""
    functions = tuple(one for one in host.functions.values() if one.physical_function == function.address)
    addresses = {function.address, *(one.address for one in functions)}
    autoprobe = text(sys, f"{DEVICES}/{function.address}/{AUTOPROBE}")
    possible = number(sys, f"{DEVICES}/{function.address}/{POSSIBLE}", "[0-9]{1,5}", "a number") or 0
    return CutCard(
        function=function,
        possible=possible,
        autoprobe=None if autoprobe is None else autoprobe != "0",
        quotas={
            one: quotas
            for one in range(1, (len(functions) or possible) + 1)
            if (quotas := read_quotas(sys, function.address, one))
        },
        places=tuple(place for one in (function, *functions) if (place := _place(sys, one)) is not None),
        functions=functions,
        mdevs=tuple(mdev for mdev in host.mdevs if mdev.parent in addresses),
    )


def read_quotas(sys: Path, card: PCIAddress, function: int) -> Mapping[str, int]:
    """Read the quotas that this card has for a virtual function, by file; empty without any."""
    directory = quota_directory(card, function)
    values = {name: number(sys, f"{directory}/{name}", "[0-9]{1,20}", "a number") for name in QUOTAS}
    return {name: value for name, value in values.items() if value is not None}


def _place(sys: Path, function: Function) -> Place | None:
    entry = f"{DEVICES}/{function.address}"
    takes_type = text(sys, f"{entry}/{VGPU_TYPE}") is not None
    mdev_types = tuple(_mdev_types(sys, f"{entry}/{MDEV_TYPES}"))
    if not takes_type and not mdev_types:
        return None
    creatable = types_listed(text(sys, f"{entry}/{VGPU_TYPES}") or "")
    return Place(function=function, takes_type=takes_type, creatable=creatable, mdev_types=mdev_types)


def _mdev_types(sys: Path, directory: str) -> Iterator[MdevType]:
    for name in names(sys, directory):
        available = text(sys, f"{directory}/{name}/available_instances") or ""
        if re.fullmatch("[0-9]{1,6}", available, re.ASCII):
            yield MdevType(name, text(sys, f"{directory}/{name}/name") or name, int(available))
