"""Reads a node's PCI functions, IOMMU groups and mediated devices.

`read_host` returns a Host: every function that could be read, every IOMMU group, every mediated device, and a Fault for
each entry that could not be read. It raises CannotLook if the functions or the groups cannot be listed: a node that was
not seen must not look like a node without GPUs.

The files are those of the kernel's Documentation/ABI/testing/sysfs-bus-pci, sysfs-kernel-iommu_groups and
sysfs-bus-vfio-mdev. `uevent` holds driver, class and IDs in one read (pci_uevent in drivers/pci/pci-driver.c), which
is what makes a node with a thousand functions readable in some ten milliseconds.
"""

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from pci.address import InvalidPCIAddress, PCIAddress, address_or_none
from pci.driver_version import is_version
from pci.functions import is_gpu
from pci.host import Fault, Function, Host, MediatedDevice, OtherMember
from pci.resets import is_listed
from pci.sysfs.attribute import DEVICES as DEVICES
from pci.sysfs.attribute import NO_LISTS, CannotLook, Silent, Unreadable, link, link_name, names, number, text
from pci.sysfs.bars import read_bars_at
from pci.sysfs.pcie import read_reset_methods
from pci.vendors import NVIDIA

#: All files of a function that are read here; `gpu-plugin record` copies them, and those of pci.sysfs.details.
#: None of it identifies a single device: serial numbers stand in `config` and `vpd`, which are not recorded.
VGPU_TYPE, VGPU_TYPES = "nvidia/current_vgpu_type", "nvidia/creatable_vgpu_types"
BOOT_VGA_FILE = "boot_vga"  # of display controllers
FILES = ("uevent", "numa_node", BOOT_VGA_FILE, VGPU_TYPE, VGPU_TYPES)
LINKS = ("iommu_group", "physfn", "driver")
VFIO_DEV = "vfio-dev"  # below a function: a directory with the name of its node in /dev/vfio/devices
VFIO_DEV_NUMBER = "dev"  # in that directory
GROUP_NAME = "name"  # of a group; most have none
OTHER_DRIVER = "driver"  # of a group's member that is no PCI function

IOMMU_GROUPS = "kernel/iommu_groups"
MDEVS = "bus/mdev/devices"
MDEV_TYPES = "mdev_supported_types"
MDEV_TYPE = "mdev_type"
MDEV_TYPE_NAME = "mdev_type/name"
EGMS = "class/egm"
EGM_GPUS = "gpu_devices"
NVIDIA_DRIVER = "module/nvidia/version"

T = TypeVar("T")

_UEVENT = re.compile(
    r"(?:DRIVER=(?P<driver>\S+)\n)?PCI_CLASS=(?P<class>[0-9A-F]{1,6})\n"
    r"PCI_ID=(?P<vendor>[0-9A-F]{4}):(?P<device>[0-9A-F]{4})\n"
    r"PCI_SUBSYS_ID=(?P<subsystem_vendor>[0-9A-F]{4}):(?P<subsystem_device>[0-9A-F]{4})(?:\n|$)",
    re.ASCII,
)
_DISPLAY = 0x03  # the base class
_KERNELS_LOG = "the kernel's log may say why"


class NotSysfs(CannotLook):
    """The directory given as /sys has no PCI devices below it."""

    wrong = f"expected a sysfs tree, with {DEVICES} below it"
    fix = "name one with --sysfs"

    def __init__(self, sys: Path) -> None:
        super().__init__("", self.wrong, self.fix)
        self.args = (sys,)

    def __str__(self) -> str:
        return f"{self.args[0]}: {self.wrong}; {self.fix}"


class _Unread:
    """What could not be read: `faults`, and `silent`, the names of all things that the kernel does not answer for."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.silent: set[str] = set()

    def add(self, unreadable: Unreadable, name: str | None = None) -> None:
        """Note an unreadable entry of the thing with this name; CannotLook if nothing else can be read either."""
        if isinstance(unreadable, CannotLook):
            raise unreadable
        self.faults.append(unreadable.fault)
        if name is not None and isinstance(unreadable, Silent):
            self.silent.add(name)

    def all_read(self, names: Iterable[str], read: Callable[[str], T]) -> dict[str, T]:
        """Return what `read` returns for each name; a name for which it raises Unreadable is noted and left out."""
        values = {}
        for name in names:
            try:
                values[name] = read(name)
            except Unreadable as unreadable:
                self.add(unreadable, name)
        return values


def require_sysfs(sys: Path) -> None:
    """Raise NotSysfs if `sys` is not like /sys, CannotLook if the kernel does not say."""
    try:
        if stat.S_ISDIR(os.stat(sys / DEVICES).st_mode):
            return
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            fix = NO_LISTS.get(error.errno or 0, _KERNELS_LOG)
            raise CannotLook(DEVICES, f"cannot be read: {error.strerror}", fix) from None
    raise NotSysfs(sys)


def read_host(sys: Path) -> Host:
    """Read the node whose /sys is `sys`. Raise NotSysfs as require_sysfs does, CannotLook if it cannot be listed."""
    require_sysfs(sys)
    unread = _Unread()
    read = unread.all_read(_all_names(sys, DEVICES), partial(_read_function, sys)).values()
    functions = {function.address: function for function in sorted(read, key=lambda function: function.address)}
    groups, others, noiommu = _read_groups(sys, functions, unread)
    mdevs = unread.all_read(_names(sys, MDEVS, unread), partial(_read_mdev, sys)).values()
    return Host(
        functions=functions,
        groups=groups,
        noiommu=noiommu,
        others=others,
        mdevs=tuple(sorted(mdevs, key=lambda mdev: mdev.uuid)),
        vgpu_types=_read_vgpu_types(sys, functions, unread),
        mdev_types=_read_mdev_types(sys, functions, unread),
        egms=unread.all_read(_names(sys, EGMS, unread), partial(_read_egm, sys)),
        faults=tuple(unread.faults),
        silent=frozenset(unread.silent),
        nvidia_driver=unread.all_read([NVIDIA_DRIVER], partial(_read_version, sys)).get(NVIDIA_DRIVER),
    )


def _read_version(sys: Path, path: str) -> str | None:
    version = text(sys, path)
    if version is not None and not is_version(version):
        raise Unreadable(path, f"holds {version[:80]!r}; expected a version like 580.126.09")
    return version


def _read_function(sys: Path, name: str) -> Function:
    entry = f"{DEVICES}/{name}"
    address = _address(entry, name)
    target = link(sys, entry)
    if target is None:
        raise Unreadable(entry, "was removed while it was read")
    root, bridges = _way(target.rpartition("/")[0])
    if not root:
        raise Unreadable(entry, f"links to {target!r}; expected a path below a host bridge, pciDDDD:BB")
    # The link's target: reading through the link every time takes half as long again.
    place = target.removeprefix("../../../") if target.startswith("../../../devices/") else entry
    try:
        return _read_function_at(sys, place, address, root, bridges)
    except Unreadable as unreadable:
        fault = unreadable.fault
        unreadable.fault = Fault(fault.path.replace(place, entry, 1), fault.wrong)
        raise


def _read_function_at(
    sys: Path, place: str, address: PCIAddress, root: str, bridges: tuple[PCIAddress, ...]
) -> Function:
    uevent = _uevent(sys, f"{place}/uevent")
    vendor_id = int(uevent["vendor"], 16)
    physical = link_name(sys, f"{place}/physfn")
    physical_function = None if physical is None else _address(f"{place}/physfn", physical)
    vgpu_type = None
    if vendor_id == NVIDIA and physical_function is not None:
        # 0 is a virtual function that is no vGPU yet.
        vgpu_type = number(sys, f"{place}/{VGPU_TYPE}", "[0-9]{1,9}", "the number of a vGPU type") or None
    function = Function(
        address=address,
        vendor_id=vendor_id,
        device_id=int(uevent["device"], 16),
        pci_class=int(uevent["class"], 16),
        subsystem_vendor_id=int(uevent["subsystem_vendor"], 16),
        subsystem_device_id=int(uevent["subsystem_device"], 16),
        driver=uevent["driver"],
        iommu_group=_group(sys, f"{place}/iommu_group"),
        numa_node=_numa_node(sys, f"{place}/numa_node"),
        root=root,
        bridges=bridges,
        physical_function=physical_function,
        vgpu_type=vgpu_type,
        # Other drivers have no such directory, and looking for it costs as much as all the rest.
        vfio_device=_vfio_device(sys, place) if vgpu_type or "vfio" in (uevent["driver"] or "") else None,
        boot_vga=int(uevent["class"], 16) >> 16 == _DISPLAY and text(sys, f"{place}/{BOOT_VGA_FILE}") == "1",
    )
    if is_listed(function):
        function = replace(function, reset_methods=read_reset_methods(sys, address))
    if function.is_virtual or not is_gpu(function):
        return function
    bars = read_bars_at(sys, f"{place}/resource") or ()
    return replace(function, memory_bar=max((bar.size for bar in bars if bar.prefetchable), default=0))


def _uevent(sys: Path, path: str) -> re.Match[str]:
    lines = text(sys, path)
    if lines is None:
        raise Unreadable(path, "missing: the function is being removed, or the tree is incomplete")
    match = _UEVENT.match(lines)
    if match is None:
        raise Unreadable(path, f"holds {lines[:80]!r}; expected lines with DRIVER, PCI_CLASS, PCI_ID, PCI_SUBSYS_ID")
    return match


@lru_cache(maxsize=1024)  # all functions of a card have one way, and every look asks again
def _way(directory: str) -> tuple[str, tuple[PCIAddress, ...]]:
    """Return the host bridge and the bridges above a function, by its path in the device tree.

    bus/pci/devices/0000:41:00.0 -> ../../../devices/pci0000:40/0000:40:01.0/0000:41:00.0
    """
    root = ""
    bridges: list[PCIAddress] = []
    for part in directory.split("/"):
        if part.startswith("pci"):
            # A host bridge may sit below another (Intel VMD: pci0000:00/0000:00:0e.0/pci10000:e0): the last counts.
            root, bridges = part, []
        elif root and (bridge := address_or_none(part)) is not None:
            bridges.append(bridge)
    return root, tuple(bridges)


def _read_groups(
    sys: Path, functions: Mapping[PCIAddress, Function], unread: _Unread
) -> tuple[Mapping[int, tuple[PCIAddress, ...]], Mapping[int, tuple[OtherMember, ...]], frozenset[int]]:
    groups: dict[int, set[PCIAddress]] = {}
    others: dict[int, tuple[OtherMember, ...]] = {}
    noiommu: set[int] = set()
    for function in functions.values():
        if function.iommu_group is not None:
            groups.setdefault(function.iommu_group, set()).add(function.address)
    for name in _all_names(sys, IOMMU_GROUPS):
        path = f"{IOMMU_GROUPS}/{name}"
        try:
            group = _group_number(path, name)
            if text(sys, f"{path}/{GROUP_NAME}") == "vfio-noiommu":
                noiommu.add(group)
        except Unreadable as unreadable:
            unread.add(unreadable)
            continue
        for member in _names(sys, f"{path}/devices", unread):
            if (address := address_or_none(member)) is not None:
                groups.setdefault(group, set()).add(address)
            else:
                others[group] = (*others.get(group, ()), _read_other_member(sys, f"{path}/devices/{member}", unread))
    # VFIO gives the groups of mediated devices that name too (vfio_noiommu_group_alloc), their nodes a plain number.
    return {group: tuple(sorted(groups[group])) for group in sorted(groups)}, others, frozenset(noiommu & groups.keys())


def _read_other_member(sys: Path, path: str, unread: _Unread) -> OtherMember:
    name = path.rpartition("/")[2]
    try:
        return OtherMember(name, link_name(sys, f"{path}/{OTHER_DRIVER}"))
    except Unreadable as unreadable:
        unread.add(unreadable)
        return OtherMember(name, None, is_readable=False)


def _read_mdev(sys: Path, name: str) -> MediatedDevice:
    entry = f"{MDEVS}/{name}"
    try:
        uuid = UUID(name)
    except ValueError:
        raise Unreadable(entry, f"{name!r} is not the UUID of a mediated device") from None
    # bus/mdev/devices/UUID -> ../../../devices/pci0000:00/0000:00:02.0/UUID
    parent = address_or_none((link(sys, entry) or "").rpartition("/")[0].rpartition("/")[2])
    if parent is None:
        raise Unreadable(entry, "expected a link to a directory below its parent, a PCI function")
    # Intel's types have no name of their own; the directory's is i915-GVTg_V5_4.
    type_name = text(sys, f"{entry}/{MDEV_TYPE_NAME}") or link_name(sys, f"{entry}/{MDEV_TYPE}")
    if not type_name:
        raise Unreadable(f"{entry}/{MDEV_TYPE}", "missing: the device is being removed, or the tree is incomplete")
    return MediatedDevice(
        uuid, type_name, parent, _group(sys, f"{entry}/iommu_group"), vfio_device=_vfio_device(sys, entry)
    )


def _read_vgpu_types(sys: Path, functions: Mapping[PCIAddress, Function], unread: _Unread) -> Mapping[int, str]:
    """Join the lists of all virtual functions: each lists only the vGPU types that it can still become."""
    types: dict[int, str] = {}
    virtual = (str(each.address) for each in functions.values() if each.vendor_id == NVIDIA and each.is_virtual)
    for listed in unread.all_read(virtual, lambda name: text(sys, f"{DEVICES}/{name}/{VGPU_TYPES}")).values():
        types |= types_listed(listed or "")
    return dict(sorted(types.items()))


def _read_mdev_types(
    sys: Path, functions: Mapping[PCIAddress, Function], unread: _Unread
) -> Mapping[PCIAddress, tuple[str, ...]]:
    """Read the types of mediated devices that NVIDIA's GPUs have, or their virtual functions."""

    def types(name: str) -> tuple[str, ...]:
        directory = f"{DEVICES}/{name}/{MDEV_TYPES}"
        return tuple(text(sys, f"{directory}/{one}/name") or one for one in names(sys, directory))

    of_nvidias = (str(each.address) for each in functions.values() if each.driver == "nvidia")
    read = unread.all_read(of_nvidias, types)
    return {PCIAddress.parse(name): its for name, its in read.items() if its}


def types_listed(listed: str) -> Mapping[int, str]:
    """Return the names of NVIDIA's vGPU types by number in the text of a creatable_vgpu_types.

    ID    : vGPU Name
    1145  : NVIDIA L40S-1B
    """
    types = {}
    for line in listed.splitlines():
        identity, _, name = line.partition(":")
        if re.fullmatch("[0-9]{1,9}", identity.strip(), re.ASCII) and name.strip():
            types[int(identity)] = name.strip()
    return types


def _read_egm(sys: Path, name: str) -> tuple[PCIAddress, ...]:
    path = f"{EGMS}/{name}/{EGM_GPUS}"
    return tuple(sorted(_address(path, word) for word in (text(sys, path) or "").split()))


def _vfio_device(sys: Path, entry: str) -> str | None:
    return next((name for name in names(sys, f"{entry}/{VFIO_DEV}") if name.startswith("vfio")), None)


def _group(sys: Path, path: str) -> int | None:
    name = link_name(sys, path)
    return None if name is None else _group_number(path, name)


def _group_number(path: str, name: str) -> int:
    if not (name.isascii() and name.isdecimal()):
        raise Unreadable(path, f"{name!r} is not the number of an IOMMU group")
    return int(name)


def _address(path: str, text: str) -> PCIAddress:
    try:
        return PCIAddress.parse(text)
    except InvalidPCIAddress as error:
        raise Unreadable(path, str(error)) from None


def _numa_node(sys: Path, path: str) -> int | None:
    # A kernel built without CONFIG_NUMA has no such file.
    node = number(sys, path, r"-1|[0-9]{1,9}", "the number of a NUMA node, or -1")
    return None if node is None or node < 0 else node


def _names(sys: Path, directory: str, unread: _Unread) -> list[str]:
    try:
        return names(sys, directory)
    except Unreadable as unreadable:
        unread.add(unreadable)
        return []


def _all_names(sys: Path, directory: str) -> list[str]:
    """Read the names in a directory that every answer about the node needs; CannotLook if it cannot be read."""
    try:
        return names(sys, directory)
    except CannotLook:
        raise
    except Unreadable as unreadable:
        raise CannotLook(unreadable.fault.path, unreadable.fault.wrong, _KERNELS_LOG) from None
