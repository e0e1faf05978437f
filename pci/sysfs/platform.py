"""Reads what a node itself has for passthrough: its IOMMU, interrupt remapping, VFIO, its kernel's parameters.

The files are those of the kernel's Documentation/ABI: stable/sysfs-module, testing/sysfs-class-iommu,
testing/sysfs-kernel-irq, testing/sysfs-firmware-acpi; the parameters those of drivers/vfio and drivers/iommu/iommufd.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from pci.host import Fault, MemoryLock, Platform, TransparentPages
from pci.sysfs.attribute import Unreadable, names, text
from pci.sysfs.functions import DEVICES
from pci.sysfs.huge_pages import read_transparent

IOMMUS = "class/iommu"
DRIVERS = "bus/pci/drivers"
IRQS = "kernel/irq"
CHIP_NAME = "chip_name"
ACPI_TABLES = "firmware/acpi/tables"
DEVICE_TREE = "firmware/devicetree/base/compatible"

#: The parameters of VFIO that are read and recorded.
NOIOMMU_MODE = "module/vfio/parameters/enable_unsafe_noiommu_mode"
UNSAFE_INTERRUPTS: Mapping[str, str] = {
    "iommufd": "module/iommufd/parameters/allow_unsafe_interrupts",
    "vfio_iommu_type1": "module/vfio_iommu_type1/parameters/allow_unsafe_interrupts",
}

#: The tables that announce Intel's and AMD's IOMMU; and the one that every machine with ACPI has.
IOMMU_TABLES = ("DMAR", "IVRS")
EVERY_MACHINES_TABLE = "APIC"

#: The chip of each interrupt of an IO-APIC has this in its name, after "IR-" if interrupts are remapped: either all are
#: or none (arch/x86/kernel/apic/io_apic.c, drivers/iommu/intel/irq_remapping.c, drivers/iommu/amd/init.c).
IO_APIC = "IO-APIC"

#: Container runtimes, by the names of their processes: containers inherit their limits, but for those that CRI-O sets.
#: So does the plugin, which is the first process of its own container.
_RUNTIMES = ("containerd", "crio")
_PLUGIN = "gpu-plugin"

T = TypeVar("T")


def read_platform(sys: Path, proc: Path | None) -> Platform:
    """Read the node whose /sys and /proc these are; without `proc`, the values from there are None."""
    faults: list[Fault] = []

    def value_of(read: Callable[[Path], T], root: Path | None) -> T | None:
        if root is None:
            return None
        try:
            return read(root)
        except Unreadable as unreadable:
            fault = unreadable.fault
            faults.append(Fault(f"proc/{fault.path}", fault.wrong) if root is proc else fault)
            return None

    functions = value_of(lambda sys: names(sys, DEVICES), sys)
    return Platform(
        iommus=tuple(value_of(lambda sys: names(sys, IOMMUS), sys) or ()),
        iommu_tables=value_of(_iommu_tables, sys),
        interrupt_remapping=value_of(_interrupt_remapping, sys),
        unsafe_interrupts=value_of(_unsafe_interrupts, sys),
        noiommu_mode=value_of(lambda sys: _switch(sys, NOIOMMU_MODE), sys),
        drivers=value_of(_drivers, sys),
        tells_resets=any(os.path.exists(sys / DEVICES / name / "reset_method") for name in functions or ()),
        cpu_vendor=value_of(lambda proc: _of_the_first_cpu(proc, "vendor_id"), proc),
        is_arm=value_of(_is_arm, proc),
        has_device_tree=os.path.exists(sys / DEVICE_TREE),
        virtual_machine=value_of(_virtual_machine, proc),
        command_line=value_of(_command_line, proc),
        memlock=value_of(_memlock, proc),
        transparent=value_of(read_transparent, sys) or TransparentPages(),
        faults=tuple(faults),
    )


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
    switches = {module: _switch(sys, path) for module, path in UNSAFE_INTERRUPTS.items()}
    modules = {module: allowed for module, allowed in switches.items() if allowed is not None}
    # If a parameter is missing, its module is not loaded, unless no parameters were recorded.
    return modules if modules or _drivers(sys) is not None else None


def _switch(sys: Path, path: str) -> bool | None:
    letter = text(sys, path)
    if letter is None:
        return None
    if letter not in ("Y", "N"):
        raise Unreadable(path, f"holds {letter[:80]!r}; expected Y or N")
    return letter == "Y"


def _drivers(sys: Path) -> frozenset[str] | None:
    return frozenset(names(sys, DRIVERS)) or None


def _of_the_first_cpu(proc: Path, name: str) -> str | None:
    match = re.search(rf"^{name}\s*: (.*)$", text(proc, "cpuinfo") or "", re.MULTILINE)
    return match[1] if match else None


def _is_arm(proc: Path) -> bool | None:
    # Each architecture has lines of its own (arch/arm64/kernel/cpuinfo.c, arch/x86/kernel/cpu/proc.c).
    lines = {name: _of_the_first_cpu(proc, name) for name in ("CPU implementer", "vendor_id")}
    return None if not any(lines.values()) else lines["CPU implementer"] is not None


def _virtual_machine(proc: Path) -> bool | None:
    # Only x86 has the flag (CPUID.1:ECX[31]), and only x86 calls the line so.
    flags = _of_the_first_cpu(proc, "flags")
    return None if flags is None else "hypervisor" in flags.split()


def _command_line(proc: Path) -> tuple[str, ...] | None:
    parameters = text(proc, "cmdline")
    return None if parameters is None else tuple(parameters.split())


def _memlock(proc: Path) -> MemoryLock | None:
    """Read the limit of a container runtime, or of the plugin's own container; None if there is neither process."""
    for pid in sorted(filter(str.isdecimal, names(proc, ".")), key=int):
        try:
            process = text(proc, f"{pid}/comm") or ""
            if process in _RUNTIMES or (process, pid) == (_PLUGIN, "1"):
                limits = text(proc, f"{pid}/limits") or ""
                if match := re.search(r"^Max locked memory +\S+ +(unlimited|[0-9]+) ", limits, re.MULTILINE):
                    return MemoryLock(process, None if match[1] == "unlimited" else int(match[1]))
        except Unreadable:
            continue  # it has ended
    return None
