"""Reads what a node itself brings along for passthrough: its IOMMU, isolated interrupts, VFIO, its kernel's parameters.

`read_platform` takes the directories that stand for /sys and /proc. The files are those of the
kernel's Documentation/ABI: stable/sysfs-module, testing/sysfs-class-iommu, testing/sysfs-kernel-irq,
testing/sysfs-firmware-acpi; the parameters those of drivers/vfio and drivers/iommu/iommufd.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from pci.host import Fault
from pci.platform import Platform
from pci.sysfs.attribute import Unreadable, names, text
from pci.sysfs.functions import DEVICES

IOMMUS = "class/iommu"
DRIVERS = "bus/pci/drivers"
IRQS = "kernel/irq"
CHIP_NAME = "chip_name"
ACPI_TABLES = "firmware/acpi/tables"

#: What of VFIO's parameters is read, and so recorded.
NOIOMMU_MODE = "module/vfio/parameters/enable_unsafe_noiommu_mode"
UNSAFE_INTERRUPTS: Mapping[str, str] = {
    "iommufd": "module/iommufd/parameters/allow_unsafe_interrupts",
    "vfio_iommu_type1": "module/vfio_iommu_type1/parameters/allow_unsafe_interrupts",
}

#: Those that announce Intel's and AMD's IOMMU; and the one that every machine with ACPI has.
IOMMU_TABLES = ("DMAR", "IVRS")
EVERY_MACHINES_TABLE = "APIC"

#: In the name of each interrupt of an IO-APIC; with "IR-" before it where interrupts are remapped, which they are all
#: or none (arch/x86/kernel/apic/io_apic.c, drivers/iommu/intel/irq_remapping.c, drivers/iommu/amd/init.c).
IO_APIC = "IO-APIC"

T = TypeVar("T")


def read_platform(sys: Path, proc: Path | None) -> Platform:
    """Read the node whose /sys and /proc are these; without `proc`, what stands there is unknown."""
    faults: list[Fault] = []

    def seen(read: Callable[[Path], T], root: Path | None) -> T | None:
        if root is None:
            return None
        try:
            return read(root)
        except Unreadable as unreadable:
            fault = unreadable.fault
            faults.append(Fault(f"proc/{fault.path}", fault.problem) if root is proc else fault)
            return None

    return Platform(
        iommus=tuple(seen(lambda sys: names(sys, IOMMUS), sys) or ()),
        iommu_tables=seen(_iommu_tables, sys),
        interrupt_remapping=seen(_interrupt_remapping, sys),
        unsafe_interrupts=seen(_unsafe_interrupts, sys),
        noiommu_mode=seen(lambda sys: _switch(sys, NOIOMMU_MODE), sys),
        drivers=seen(_drivers, sys),
        tells_resets=any(os.path.exists(sys / DEVICES / name / "reset_method") for name in seen(_functions, sys) or ()),
        cpu_vendor=seen(lambda proc: _of_the_first_cpu(proc, "vendor_id"), proc),
        virtual_machine=seen(_virtual_machine, proc),
        command_line=seen(_command_line, proc),
        faults=tuple(faults),
    )


def _functions(sys: Path) -> list[str]:
    return names(sys, DEVICES)


def _iommu_tables(sys: Path) -> frozenset[str] | None:
    tables = names(sys, ACPI_TABLES)
    return frozenset(tables).intersection(IOMMU_TABLES) if EVERY_MACHINES_TABLE in tables else None


def _interrupt_remapping(sys: Path) -> bool | None:
    for irq in names(sys, IRQS):
        chip = text(sys, f"{IRQS}/{irq}/{CHIP_NAME}") or ""
        if IO_APIC in chip:
            return chip.startswith("IR-")
    return None


def _unsafe_interrupts(sys: Path) -> Mapping[str, bool] | None:
    found = {module: _switch(sys, path) for module, path in UNSAFE_INTERRUPTS.items()}
    there = {module: allowed for module, allowed in found.items() if allowed is not None}
    # A parameter that is missing is a module that is missing, unless nothing of the kind was recorded.
    return there if there or _drivers(sys) is not None else None


def _switch(sys: Path, path: str) -> bool | None:
    found = text(sys, path)
    if found is None:
        return None
    if found not in ("Y", "N"):
        raise Unreadable(path, f"holds {found[:80]!r}; expected Y or N")
    return found == "Y"


def _drivers(sys: Path) -> frozenset[str] | None:
    return frozenset(names(sys, DRIVERS)) or None


def _of_the_first_cpu(proc: Path, name: str) -> str | None:
    found = re.search(rf"^{name}\s*: (.*)$", text(proc, "cpuinfo") or "", re.MULTILINE)
    return found[1] if found else None


def _virtual_machine(proc: Path) -> bool | None:
    # Only x86 has the flag (CPUID.1:ECX[31]), and only x86 calls the line so.
    flags = _of_the_first_cpu(proc, "flags")
    return None if flags is None else "hypervisor" in flags.split()


def _command_line(proc: Path) -> tuple[str, ...] | None:
    found = text(proc, "cmdline")
    return None if found is None else tuple(found.split())
