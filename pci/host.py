"""A node's PCI functions, IOMMU groups, mediated devices and platform as frozen values, which pci.sysfs reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple
from uuid import UUID

from pci.address import PCIAddress

_PCI_BRIDGE = 0x0604


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One PCI function.

    `pci_class` has 24 bits: base class, subclass, programming interface. `numa_node` is None where the firmware did not
    say (the kernel's -1). `root` is the host bridge (`pci0000:40`), `bridges` the chain of bridges below it, from the
    root port down. `physical_function` is set for an SR-IOV virtual function; `vgpu_type` for one that NVIDIA's driver
    makes a vGPU of (`nvidia/current_vgpu_type`): the number of its type. `vfio_device` is the name of its node in
    /dev/vfio/devices (`vfio3`), set if a vfio driver has the function, since Linux 6.1. `boot_vga`: the firmware put
    its screen on this function. `memory_bar`: bytes of a GPU's largest prefetchable BAR, which shows its memory; 0 if
    that is unknown. `reset_methods`: as in Details, read only for the models in pci.resets.
    """

    address: PCIAddress
    vendor_id: int
    device_id: int
    pci_class: int
    subsystem_vendor_id: int
    subsystem_device_id: int
    driver: str | None
    iommu_group: int | None
    numa_node: int | None
    root: str
    bridges: tuple[PCIAddress, ...]
    physical_function: PCIAddress | None
    vgpu_type: int | None
    vfio_device: str | None
    boot_vga: bool = False
    memory_bar: int = 0
    reset_methods: tuple[str, ...] | None = None

    @property
    def is_virtual(self) -> bool:
        return self.physical_function is not None

    @property
    def card(self) -> PCIAddress:
        """The address of the physical function: a virtual function's own card."""
        return self.physical_function or self.address

    @property
    def is_bridge(self) -> bool:
        return self.pci_class >> 8 == _PCI_BRIDGE

    @property
    def switch(self) -> PCIAddress | None:
        """The upstream port of the PCIe switch that the function is behind, None without one: a switch is a bridge
        below a root port, with bridges behind it."""
        return self.bridges[1] if len(self.bridges) > 2 else None

    @property
    def pci_id(self) -> str:
        """Vendor and device as lspci -n prints them: `10de:1f08`."""
        return f"{self.vendor_id:04x}:{self.device_id:04x}"

    @property
    def subsystem_id(self) -> str:
        """Vendor and device of the board: `1462:3756`; `0000:0000` where it has none."""
        return f"{self.subsystem_vendor_id:04x}:{self.subsystem_device_id:04x}"


@dataclass(frozen=True, slots=True)
class BAR:
    """A base address register (BAR) of a function, one line of its `resource` file.

    `size` is in bytes. `assigned` is False for a BAR of memory for which the kernel found no address. `is_io`: the BAR
    is of I/O ports, not of memory.
    """

    number: int
    size: int
    prefetchable: bool
    memory_64: bool
    assigned: bool
    is_io: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """The PCIe link above a function: its speed in GT/s and its lanes, and the function's maximum of both; None if
    unknown, like the speed of a link that is down."""

    speed: float | None
    lanes: int | None
    max_speed: float | None
    max_lanes: int | None


@dataclass(frozen=True, slots=True)
class PeerToPeer:
    """What a function's config space says of requests from one device to another: `acs`, the control register of a
    port's Access Control Services; `ats`, whether an endpoint's Address Translation Services are on. None without the
    capability."""

    acs: int | None
    ats: bool | None

    @property
    def redirects(self) -> bool:
        """Whether a port sends requests to other devices up to the root complex (PCI_ACS_RR and PCI_ACS_CR in
        include/uapi/linux/pci_regs.h)."""
        return bool((self.acs or 0) & (0x04 | 0x08))

    @property
    def passes_translated(self) -> bool:
        """Whether a port passes on requests that ATS has translated, even if it redirects others (PCI_ACS_DT)."""
        return bool((self.acs or 0) & 0x40)


class Errors(NamedTuple):
    """How many errors of a function the kernel counted by AER. After a nonfatal one a transaction was lost, after a
    fatal one the link is not reliable any more."""

    correctable: int
    nonfatal: int
    fatal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """What pci.sysfs.details reads of one function, and pci.sysfs.pcie.

    `power_state`: D0, D3hot, D3cold ...; None before Linux 5.10. `reset_methods`: as the kernel tries them in turn;
    empty if the admin took all away; None if the function has no reset, or before Linux 5.15
    (pci_dev_reset_method_attr_is_visible in drivers/pci/pci.c). `bars`: None if `resource` was not recorded.
    `d3cold_allowed`: None without ACPI.
    `virtual_functions`: how many exist; None without SR-IOV.
    """

    power_state: str | None
    reset_methods: tuple[str, ...] | None
    bars: tuple[BAR, ...] | None
    virtual_functions: int | None
    driver_override: str | None
    errors: Errors | None = None
    d3cold_allowed: bool | None = None


@dataclass(frozen=True, slots=True)
class MediatedDevice:
    """A device that a driver made from a part of another: the name of its type (`GRID T4-1Q`), its parent, its group,
    and the name of its node in /dev/vfio/devices."""

    uuid: UUID
    type_name: str
    parent: PCIAddress
    iommu_group: int | None
    vfio_device: str | None


@dataclass(frozen=True, slots=True)
class OtherMember:
    """A member of an IOMMU group that is no PCI function: its name on its own bus (`INTC1055:00`, a platform device)
    and its driver; `is_readable` says whether the driver could be read."""

    name: str
    driver: str | None
    is_readable: bool = True


@dataclass(frozen=True, slots=True)
class Fault:
    """An entry of sysfs that could not be read: its path below the root of sysfs, and what is wrong with it."""

    path: str
    wrong: str

    def __str__(self) -> str:
        return f"{self.path}: {self.wrong}"


class MemoryLock(NamedTuple):
    """The hard RLIMIT_MEMLOCK of a process, by its name: so many bytes, None without a limit."""

    process: str
    limit: int | None


@dataclass(frozen=True, slots=True)
class TransparentPages:
    """The node's settings of transparent huge pages, each in the kernel's own word, like `madvise`; None if unknown.

    `enabled` is for private memory, `shmem_enabled` for a memfd (Documentation/admin-guide/mm/transhuge.rst). QEMU asks
    for them by madvise(2), for all of a guest's memory.
    """

    enabled: str | None = None
    shmem_enabled: str | None = None

    @property
    def for_private(self) -> bool | None:
        """Whether a guest's private memory gets them."""
        return None if self.enabled is None else self.enabled != "never"

    @property
    def for_shared(self) -> bool | None:
        """Whether a guest's shared memory gets them."""
        return None if self.shmem_enabled is None else self.shmem_enabled not in ("never", "deny")


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """The platform; None for a fact that could not be read: a record may lack it, a container may hide it, an
    architecture may not have it.

    `iommus` are the names of the IOMMU's units: `dmar0` (Intel), `ivhd0` (AMD), `smmu3.0x...` (ARM). `iommu_tables` are
    the ACPI tables by which the firmware announces an IOMMU: DMAR, IVRS. `unsafe_interrupts` has each module that can
    map a guest's memory (vfio_iommu_type1, iommufd), and whether its allow_unsafe_interrupts is on. `drivers` are those
    of the PCI bus. `tells_resets`: some function has a `reset_method`, so a function without this file has no reset.
    `cpu_vendor`: `GenuineIntel`, `AuthenticAMD` ...; `is_arm`: the processors are ARM's. `has_device_tree`: the
    firmware describes the machine by a device tree, not by ACPI. `command_line` has the kernel's parameters, one each.
    `memlock` is how much memory containers may lock.
    """

    iommus: tuple[str, ...] = ()
    iommu_tables: frozenset[str] | None = None
    interrupt_remapping: bool | None = None
    unsafe_interrupts: Mapping[str, bool] | None = None
    noiommu_mode: bool | None = None
    drivers: frozenset[str] | None = None
    tells_resets: bool = False
    cpu_vendor: str | None = None
    is_arm: bool | None = None
    has_device_tree: bool = False
    virtual_machine: bool | None = None
    command_line: tuple[str, ...] | None = None
    memlock: MemoryLock | None = None
    transparent: TransparentPages = TransparentPages()
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True)
class Host:
    """A node's PCI functions by address, ascending; its IOMMU groups by number; and what could not be read.

    `groups` has all functions that the kernel lists for a group, also those missing from `functions` because they could
    not be read; `others` has the group's members that are no PCI functions. `noiommu` are the groups that vfio made up
    because there is no IOMMU (enable_unsafe_noiommu_mode). `nvidia_driver`: the version of NVIDIA's driver, if it is
    loaded. `mdevs` are ascending by UUID. `vgpu_types` are the names of NVIDIA's vGPU types by number, for the types
    that some virtual function can still become, and `made_vgpus` the virtual functions and mediated devices that
    gpu-plugin made vGPUs of: plugin.node.look adds both from gpu-plugin's journal. `mdev_types` are the names of the
    types of which NVIDIA's driver makes mediated devices, by their parent, whether or not there is room for one. `egms`
    are Grace's extended GPU memories (`egm4`), each with its GPUs. `silent` are the names in sysfs (addresses, UUIDs,
    extended GPU memories) about which the kernel did not answer.
    """

    functions: Mapping[PCIAddress, Function]
    groups: Mapping[int, tuple[PCIAddress, ...]]
    noiommu: frozenset[int]
    faults: tuple[Fault, ...]
    mdevs: tuple[MediatedDevice, ...] = ()
    vgpu_types: Mapping[int, str] = field(default_factory=dict)
    made_vgpus: frozenset[PCIAddress | UUID] = frozenset()
    mdev_types: Mapping[PCIAddress, tuple[str, ...]] = field(default_factory=dict)
    egms: Mapping[str, tuple[PCIAddress, ...]] = field(default_factory=dict)
    others: Mapping[int, tuple[OtherMember, ...]] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()
    nvidia_driver: str | None = None

    def as_seen_since(self, before: "Host") -> "Host":
        """Return this host with the silent functions and devices as they were `before`, as far as they were known."""
        if not self.silent:
            return self
        kept = {
            address: function
            for address, function in before.functions.items()
            if address not in self.functions and str(address) in self.silent
        }
        groups = {group: set(addresses) for group, addresses in self.groups.items()}
        for function in kept.values():
            if function.iommu_group is not None:
                groups.setdefault(function.iommu_group, set()).add(function.address)
        mdevs = [mdev for mdev in before.mdevs if str(mdev.uuid) in self.silent]
        return replace(
            self,
            functions=dict(sorted({**self.functions, **kept}.items())),
            groups={group: tuple(sorted(groups[group])) for group in sorted(groups)},
            mdevs=tuple(sorted((*self.mdevs, *mdevs), key=lambda mdev: mdev.uuid)),
            # Each function names some of the types.
            vgpu_types={**before.vgpu_types, **self.vgpu_types},
            mdev_types={
                **{parent: types for parent, types in before.mdev_types.items() if str(parent) in self.silent},
                **self.mdev_types,
            },
            egms={**{name: gpus for name, gpus in before.egms.items() if name in self.silent}, **self.egms},
        )

    @cached_property
    def _slots(self) -> Mapping[tuple[int, int, int], tuple[Function, ...]]:
        slots: dict[tuple[int, int, int], tuple[Function, ...]] = {}
        for function in self.functions.values():
            at = function.address
            key = (at.domain, at.bus, at.slot)
            slots[key] = (*slots.get(key, ()), function)
        return slots

    def slot(self, address: PCIAddress) -> tuple[Function, ...]:
        """Return the functions of this address's slot, ascending."""
        return self._slots.get((address.domain, address.bus, address.slot), ())

    @cached_property
    def _below(self) -> Mapping[tuple[PCIAddress, ...], tuple[Function, ...]]:
        below: dict[tuple[PCIAddress, ...], tuple[Function, ...]] = {}
        for function in self.functions.values():
            if function.switch is not None:
                above = function.bridges[:-1]
                below[above] = (*below.get(above, ()), function)
        return below

    def beside(self, function: Function) -> tuple[Function, ...]:
        """Return the functions behind the other downstream ports of the switch that this function is behind, ascending;
        none without a switch directly above."""
        below = self._below.get(function.bridges[:-1], ()) if function.switch is not None else ()
        return tuple(other for other in below if other.bridges != function.bridges)
