"""Records a node's sysfs, so that a bug report can become a test: exactly what pci.sysfs reads, links kept.

None of the copied files identifies a single device (serial numbers stand in `config` and `vpd`, which are left out),
so there is nothing to blank. Where it counts only that a file is there, an empty one stands for it.
"""

from collections.abc import Iterable
from pathlib import Path

from pci.address import address_or_none
from pci.sysfs import details
from pci.sysfs.attribute import Silent, content
from pci.sysfs.functions import (
    DEVICES,
    EGM_GPUS,
    EGMS,
    FILES,
    GROUP_NAME,
    IOMMU_GROUPS,
    LINKS,
    MDEV_TYPE,
    MDEV_TYPE_NAME,
    MDEVS,
    OTHER_DRIVER,
    VFIO_DEV,
    VFIO_DEV_NUMBER,
    require_sysfs,
)
from pci.sysfs.platform import (
    ACPI_TABLES,
    CHIP_NAME,
    DRIVERS,
    EVERY_MACHINES_TABLE,
    IO_APIC,
    IOMMU_TABLES,
    IOMMUS,
    IRQS,
    NOIOMMU_MODE,
    UNSAFE_INTERRUPTS,
)
from pci.sysfs.processors import CPUS, NODE_FILES, NODES, SIBLINGS


def record(sys: Path, out: Path) -> int:
    """Copy what is read of the tree `sys` to the directory `out`; return the number of functions copied.

    `out` is empty, or has what an earlier try left. What cannot be read, or leads out of the tree, is left out: broken
    trees are what bug reports are about. NotSysfs if `sys` is no sysfs; OSError if `out` cannot be written.
    """
    require_sysfs(sys)
    functions = sorted((sys / DEVICES).iterdir())
    for group in sorted((sys / IOMMU_GROUPS).glob("*")):
        _copy_file(sys, out, group / GROUP_NAME)
        for member in sorted((group / "devices").glob("*")):
            if address_or_none(member.name) is None:
                _copy_device(sys, out, member, files=(), links=(OTHER_DRIVER,))
            else:
                _copy_link(sys, out, member)
    for function in functions:
        place = _copy_device(sys, out, function, files=(*FILES, *details.DETAILS), links=LINKS)
        if place is not None:
            # The name of the directory is what is read; git keeps no empty one.
            for node in sorted((place / VFIO_DEV).glob("*")):
                _copy_file(sys, out, node / VFIO_DEV_NUMBER)
    for mdev in sorted((sys / MDEVS).glob("*")):
        _copy_device(sys, out, mdev, files=(MDEV_TYPE_NAME,), links=(MDEV_TYPE, "iommu_group"))
    for egm in sorted((sys / EGMS).glob("*")):
        _copy_device(sys, out, egm, files=(EGM_GPUS,), links=())
    _record_platform(sys, out)
    _record_processors(sys, out)
    return len(functions)


def _record_platform(sys: Path, out: Path) -> None:
    for unit in sorted((sys / IOMMUS).glob("*")):
        _copy_link(sys, out, unit)
    for path in (NOIOMMU_MODE, *UNSAFE_INTERRUPTS.values()):
        _copy_file(sys, out, sys / path)
    for interrupt in sorted((sys / IRQS).glob(f"*/{CHIP_NAME}")):
        # A server has thousands of others.
        _copy_file(sys, out, interrupt, only=IO_APIC.encode())
    for driver in sorted((sys / DRIVERS).glob("*/bind")):
        _place(sys, out, driver).touch()
    for table in (EVERY_MACHINES_TABLE, *IOMMU_TABLES):
        if (sys / ACPI_TABLES / table).exists():
            _place(sys, out, sys / ACPI_TABLES / table).touch()


def _record_processors(sys: Path, out: Path) -> None:
    for node in sorted((sys / NODES).glob("node[0-9]*")):
        for name in NODE_FILES:
            _copy_file(sys, out, node / name)
    for cpu in sorted((sys / CPUS).glob("cpu[0-9]*")):
        _copy_file(sys, out, cpu / SIBLINGS)


def _copy_device(sys: Path, out: Path, entry: Path, *, files: Iterable[str], links: Iterable[str]) -> Path | None:
    """Copy an entry of a bus or a class, and what is read of the device behind it; return where that really is."""
    _copy_link(sys, out, entry)
    try:
        # Through the link: files are kept where the device really is, below devices/pciDDDD:BB.
        place = sys / entry.resolve().relative_to(sys.resolve())
    except (OSError, RuntimeError, ValueError):
        return None  # a link in a circle, or out of the tree
    for name in links:
        _copy_link(sys, out, place / name)
    for name in files:
        # A file behind a link (a type's name) is kept where it really is, too.
        directory = (place / name).parent
        try:
            _copy_file(sys, out, sys / directory.resolve().relative_to(sys.resolve()) / (place / name).name)
        except (OSError, RuntimeError, ValueError):
            continue
    return place


def _copy_file(sys: Path, out: Path, source: Path, *, only: bytes = b"") -> None:
    """Copy a file if it can be read and contains `only`."""
    try:
        copied = content(sys, str(source.relative_to(sys)))
    except (OSError, Silent):
        return
    if only in copied:
        _place(sys, out, source).write_bytes(copied)


def _copy_link(sys: Path, out: Path, link: Path) -> None:
    try:
        target = link.readlink()
    except OSError:
        return
    place = _place(sys, out, link)
    if not place.is_symlink():
        place.symlink_to(target)


def _place(sys: Path, out: Path, source: Path) -> Path:
    place = out / source.relative_to(sys)
    place.parent.mkdir(parents=True, exist_ok=True)
    return place
