"""What a node itself brings along for passthrough, as a frozen value; pci.sysfs.platform reads it."""

from collections.abc import Mapping
from dataclasses import dataclass

from pci.host import Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """What was seen of the platform; None is what could not be seen: a record may lack it, a container may hide it, an
    architecture may not have it.

    `iommus` are the names of the IOMMU's units: `dmar0` (Intel), `ivhd0` (AMD), `smmu3.0x...` (ARM). `iommu_tables` are
    the ACPI tables by which the firmware announces an IOMMU: DMAR, IVRS. `unsafe_interrupts` has each module that can
    map a guest's memory (vfio_iommu_type1, iommufd), and whether its allow_unsafe_interrupts is on. `drivers` are those
    of the PCI bus. `tells_resets`: some function has a `reset_method`, so that one without it has no reset.
    `cpu_vendor`: `GenuineIntel`, `AuthenticAMD` ... `command_line` has the kernel's parameters, one each.
    """

    iommus: tuple[str, ...] = ()
    iommu_tables: frozenset[str] | None = None
    interrupt_remapping: bool | None = None
    unsafe_interrupts: Mapping[str, bool] | None = None
    noiommu_mode: bool | None = None
    drivers: frozenset[str] | None = None
    tells_resets: bool = False
    cpu_vendor: str | None = None
    virtual_machine: bool | None = None
    command_line: tuple[str, ...] | None = None
    faults: tuple[Fault, ...] = ()
