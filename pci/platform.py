"""What a node itself brings along for passthrough, as a frozen value; pci.sysfs.platform reads it."""

from collections.abc import Mapping
from dataclasses import dataclass

from pci.host import Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """What could be seen; None is what could not: in a record that does not have it, in a container that hides it, on
    an architecture without it.

    `iommus` are the names of the units: `dmar0` (Intel), `ivhd0` (AMD), `smmu3.0x...` (ARM). `iommu_tables` are the
    ones of ACPI by which the firmware announces them: DMAR, IVRS. `unsafe_interrupts` has each module that can map a
    guest's memory (vfio_iommu_type1, iommufd) and whether its allow_unsafe_interrupts is on. `drivers` are those of the
    PCI bus. `tells_resets`: some function has a `reset_method`, so that one without it has no reset. `cpu_vendor`:
    `GenuineIntel`, `AuthenticAMD` ... `command_line` is the kernel's, a parameter each.
    """

    iommus: tuple[str, ...]
    iommu_tables: frozenset[str] | None
    interrupt_remapping: bool | None
    unsafe_interrupts: Mapping[str, bool] | None
    noiommu_mode: bool | None
    drivers: frozenset[str] | None
    tells_resets: bool
    cpu_vendor: str | None
    virtual_machine: bool | None
    command_line: tuple[str, ...] | None
    faults: tuple[Fault, ...]
