"""What sysfs says about a node's PCI functions. The one place that reads it.

`read_host` takes the directory that stands for /sys and returns a Host: every function that could be read, every
IOMMU group, and a Fault for each entry that could not be read. Nothing is decided here.

The files are those of the kernel's Documentation/ABI/testing/sysfs-bus-pci and sysfs-kernel-iommu_groups.
"""

import errno
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pci.address import InvalidPCIAddress, PCIAddress

#: All that is read of a function, and so all that `gpu-plugin record` copies. None of it identifies a single
#: device: serial numbers stand in `config` and `vpd`, which are not here.
FILES = ("vendor", "device", "class", "subsystem_vendor", "subsystem_device", "numa_node")
LINKS = ("driver", "iommu_group", "physfn")
GROUP_NAME = "name"  # of a group; most have none

DEVICES = "bus/pci/devices"
IOMMU_GROUPS = "kernel/iommu_groups"

_PCI_BRIDGE = 0x0604


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One PCI function.

    `pci_class` has 24 bits: base class, subclass, programming interface. `numa_node` is None where the firmware did
    not say (the kernel's -1). `root` is the host bridge (`pci0000:40`), `bridges` the chain of bridges below it, from
    the root port down. `physical_function` is set for an SR-IOV virtual function.
    """

    address: PCIAddress
    vendor_id: int
    device_id: int
    pci_class: int
    subsystem_vendor_id: int | None
    subsystem_device_id: int | None
    driver: str | None
    iommu_group: int | None
    numa_node: int | None
    root: str
    bridges: tuple[PCIAddress, ...]
    physical_function: PCIAddress | None

    @property
    def is_virtual(self) -> bool:
        return self.physical_function is not None

    @property
    def is_bridge(self) -> bool:
        return self.pci_class >> 8 == _PCI_BRIDGE

    @property
    def pci_id(self) -> str:
        """Vendor and device as lspci -n prints them: `10de:1f08`."""
        return f"{self.vendor_id:04x}:{self.device_id:04x}"


@dataclass(frozen=True, slots=True)
class Fault:
    """An entry of sysfs that could not be read: its path below the sysfs root, and what is wrong with it."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


@dataclass(frozen=True)
class Host:
    """A node's PCI functions by address, ascending; its IOMMU groups by number; and what could not be read.

    A group's members are all that the kernel lists for it, also those that are missing from `functions`. `noiommu`
    are the groups that vfio made up where there is no IOMMU (its enable_unsafe_noiommu_mode).
    """

    functions: Mapping[PCIAddress, Function]
    groups: Mapping[int, tuple[PCIAddress, ...]]
    noiommu: frozenset[int]
    faults: tuple[Fault, ...]

    @cached_property
    def _slots(self) -> Mapping[tuple[int, int, int], tuple[Function, ...]]:
        slots: dict[tuple[int, int, int], tuple[Function, ...]] = {}
        for function in self.functions.values():
            at = function.address
            key = (at.domain, at.bus, at.slot)
            slots[key] = (*slots.get(key, ()), function)
        return slots

    def slot(self, address: PCIAddress) -> tuple[Function, ...]:
        """The functions of this address's slot, ascending."""
        return self._slots.get((address.domain, address.bus, address.slot), ())

    def card(self, address: PCIAddress) -> tuple[Function, ...]:
        """The functions that travel with this one, itself included, ascending: its card.

        They share its slot and its IOMMU group. A virtual function or a bridge travels alone and with nobody.
        Empty where the address is not on this host.
        """
        function = self.functions.get(address)
        if function is None:
            return ()
        if function.is_virtual or function.is_bridge:
            return (function,)
        return tuple(
            other
            for other in self.slot(address)
            if other.iommu_group == function.iommu_group and not other.is_virtual and not other.is_bridge
        )


class NotSysfs(Exception):
    """The directory given as /sys has no PCI devices below it."""

    def __init__(self, sys: Path) -> None:
        super().__init__(f"{sys}: expected a sysfs tree, with {DEVICES} below it; name one with --sysfs")


class _Unreadable(Exception):
    """One attribute could not be read; carries its path below the sysfs root."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.fault = Fault(path, problem)


def require_sysfs(sys: Path) -> None:
    """NotSysfs where that directory stands for no /sys."""
    if not os.path.isdir(sys / DEVICES):
        raise NotSysfs(sys)


def read_host(sys: Path) -> Host:
    """Read the node whose /sys is `sys`; NotSysfs where that directory is none."""
    require_sysfs(sys)
    functions: dict[PCIAddress, Function] = {}
    groups: dict[int, set[PCIAddress]] = {}
    noiommu: set[int] = set()
    faults: list[Fault] = []
    for name in _names(sys, DEVICES, faults):
        try:
            function = _read_function(sys, name)
        except _Unreadable as unreadable:
            faults.append(unreadable.fault)
        else:
            functions[function.address] = function
            if function.iommu_group is not None:
                groups.setdefault(function.iommu_group, set()).add(function.address)
    for name in _names(sys, IOMMU_GROUPS, faults):
        path = f"{IOMMU_GROUPS}/{name}"
        try:
            number = _group_number(path, name)
            if _text(sys, f"{path}/{GROUP_NAME}") == "vfio-noiommu":
                noiommu.add(number)
        except _Unreadable as unreadable:
            faults.append(unreadable.fault)
            continue
        for member in _names(sys, f"{path}/devices", faults):
            # What is not a PCI function (a mediated device, a platform device) has a group of its own.
            if (address := _address_or_none(member)) is not None:
                groups.setdefault(number, set()).add(address)
    return Host(
        functions=dict(sorted(functions.items())),
        groups={number: tuple(sorted(groups[number])) for number in sorted(groups)},
        noiommu=frozenset(noiommu),
        faults=tuple(faults),
    )


def _read_function(sys: Path, name: str) -> Function:
    entry = f"{DEVICES}/{name}"
    try:
        address = PCIAddress.parse(name)
    except InvalidPCIAddress as error:
        raise _Unreadable(entry, str(error)) from None
    root, bridges = _place(sys, entry)
    return Function(
        address=address,
        vendor_id=_required(sys, f"{entry}/vendor", bits=16),
        device_id=_required(sys, f"{entry}/device", bits=16),
        pci_class=_required(sys, f"{entry}/class", bits=24),
        subsystem_vendor_id=_number(sys, f"{entry}/subsystem_vendor", bits=16),
        subsystem_device_id=_number(sys, f"{entry}/subsystem_device", bits=16),
        driver=_link_name(sys, f"{entry}/driver"),
        iommu_group=_group(sys, f"{entry}/iommu_group"),
        numa_node=_numa_node(sys, f"{entry}/numa_node"),
        root=root,
        bridges=bridges,
        physical_function=_physical_function(sys, f"{entry}/physfn"),
    )


def _place(sys: Path, entry: str) -> tuple[str, tuple[PCIAddress, ...]]:
    """The host bridge and the bridges above a function, read off its path in the device tree.

    bus/pci/devices/0000:41:00.0 -> ../../../devices/pci0000:40/0000:40:01.0/0000:41:00.0
    """
    target = _link(sys, entry)
    if target is None:
        raise _Unreadable(entry, "was removed while it was read")
    root = ""
    bridges: list[PCIAddress] = []
    for part in target.split("/")[:-1]:
        if part.startswith("pci"):
            # A host bridge may sit below another (Intel VMD: pci0000:00/0000:00:0e.0/pci10000:e0): the last counts.
            root, bridges = part, []
        elif root and (bridge := _address_or_none(part)) is not None:
            bridges.append(bridge)
    if not root:
        raise _Unreadable(entry, f"links to {target!r}; expected a path below a host bridge, pciDDDD:BB")
    return root, tuple(bridges)


def _group(sys: Path, path: str) -> int | None:
    name = _link_name(sys, path)
    return None if name is None else _group_number(path, name)


def _group_number(path: str, name: str) -> int:
    if not (name.isascii() and name.isdecimal()):
        raise _Unreadable(path, f"{name!r} is not the number of an IOMMU group")
    return int(name)


def _physical_function(sys: Path, path: str) -> PCIAddress | None:
    name = _link_name(sys, path)
    if name is None:
        return None
    try:
        return PCIAddress.parse(name)
    except InvalidPCIAddress as error:
        raise _Unreadable(path, str(error)) from None


def _numa_node(sys: Path, path: str) -> int | None:
    text = _text(sys, path)
    if text is None:
        return None  # a kernel built without CONFIG_NUMA has no such file
    if not re.fullmatch(r"-1|[0-9]{1,9}", text, re.ASCII):
        raise _Unreadable(path, f"holds {text!r}; expected the number of a NUMA node, or -1")
    node = int(text)
    return node if node >= 0 else None


def _required(sys: Path, path: str, *, bits: int) -> int:
    number = _number(sys, path, bits=bits)
    if number is None:
        raise _Unreadable(path, "missing: the function is being removed, or the tree is incomplete")
    return number


def _number(sys: Path, path: str, *, bits: int) -> int | None:
    text = _text(sys, path)
    if text is None:
        return None
    digits = bits // 4
    if not re.fullmatch(f"0x[0-9a-fA-F]{{{digits}}}", text):
        raise _Unreadable(path, f"holds {text!r}; expected 0x and {digits} hexadecimal digits")
    return int(text, 16)


def _text(sys: Path, path: str) -> str | None:
    """A file's one line; None where there is no such file."""
    try:
        with open(f"{sys}/{path}", "rb", buffering=0) as file:
            # What we read fits in a few bytes. The limit keeps a broken tree from filling memory.
            return file.read(64).decode("ascii").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError:
        raise _Unreadable(path, "holds binary data; expected one line of text") from None
    except OSError as error:
        raise _Unreadable(path, f"cannot be read: {error.strerror}") from None


def _link(sys: Path, path: str) -> str | None:
    """Where a link points; None where there is no such entry."""
    try:
        return os.readlink(f"{sys}/{path}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        problem = "expected a link" if error.errno == errno.EINVAL else f"cannot be read: {error.strerror}"
        raise _Unreadable(path, problem) from None


def _link_name(sys: Path, path: str) -> str | None:
    target = _link(sys, path)
    return None if target is None else target.rpartition("/")[2]


def _address_or_none(name: str) -> PCIAddress | None:
    try:
        return PCIAddress.parse(name)
    except InvalidPCIAddress:
        return None


def _names(sys: Path, directory: str, faults: list[Fault]) -> list[str]:
    """The names in a directory, sorted, since directory order is not an order; empty where it does not exist."""
    try:
        return sorted(os.listdir(f"{sys}/{directory}"))
    except FileNotFoundError:
        return []
    except OSError as error:
        faults.append(Fault(directory, f"cannot be read: {error.strerror}"))
        return []
