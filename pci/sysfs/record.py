"""Records a node's sysfs, so that a bug report can become a test: exactly what pci.sysfs reads, links kept.

None of the copied files identifies a single device (serial numbers stand in `config` and `vpd`, which are left out),
so there is nothing to blank. A file whose presence alone counts is recorded as an empty file.
"""

from collections.abc import Iterable
from pathlib import Path

from pci.address import address_or_none
from pci.sysfs import details, functions, huge_pages, pcie, platform, processors, vgpus
from pci.sysfs.attribute import Silent, content


def record(sys: Path, out: Path) -> int:
    """Copy what pci.sysfs reads of the tree `sys` to the directory `out`; return the number of functions.

    `out` is empty, or has what an earlier try left. An entry that cannot be read, or leads out of the tree, is left
    out: bug reports are about broken trees. NotSysfs if `sys` is no sysfs; OSError if `out` cannot be written.
    """
    functions.require_sysfs(sys)
    devices = sorted((sys / functions.DEVICES).iterdir())
    for group in sorted((sys / functions.IOMMU_GROUPS).glob("*")):
        _copy_file(sys, out, group / functions.GROUP_NAME)
        for member in sorted((group / "devices").glob("*")):
            if address_or_none(member.name) is None:
                _copy_device(sys, out, member, files=(), links=(functions.OTHER_DRIVER,))
            else:
                _copy_link(sys, out, member)
    for function in devices:
        files = (*functions.FILES, *details.DETAILS, *pcie.PCIE)
        place = _copy_device(sys, out, function, files=files, links=functions.LINKS)
        if place is not None:
            # Only the directory's name is read; git keeps no empty directory.
            for node in sorted((place / functions.VFIO_DEV).glob("*")):
                _copy_file(sys, out, node / functions.VFIO_DEV_NUMBER)
            for pattern in vgpus.PATTERNS:
                for file in sorted(place.glob(pattern)):
                    _copy_file(sys, out, file)
    for mdev in sorted((sys / functions.MDEVS).glob("*")):
        _copy_device(sys, out, mdev, files=(functions.MDEV_TYPE_NAME,), links=(functions.MDEV_TYPE, "iommu_group"))
    for egm in sorted((sys / functions.EGMS).glob("*")):
        _copy_device(sys, out, egm, files=(functions.EGM_GPUS,), links=())
    _record_platform(sys, out)
    _record_processors(sys, out)
    return len(devices)


def _record_platform(sys: Path, out: Path) -> None:
    for setting in huge_pages.SETTINGS:
        _copy_file(sys, out, sys / huge_pages.DIRECTORY / setting)
    for unit in sorted((sys / platform.IOMMUS).glob("*")):
        _copy_link(sys, out, unit)
    for path in (
        functions.NVIDIA_DRIVER,
        platform.DEVICE_TREE,
        platform.NOIOMMU_MODE,
        *platform.UNSAFE_INTERRUPTS.values(),
    ):
        _copy_file(sys, out, sys / path)
    for interrupt in sorted((sys / platform.IRQS).glob(f"*/{platform.CHIP_NAME}")):
        # A server has thousands of other functions.
        _copy_file(sys, out, interrupt, only=platform.IO_APIC.encode())
    for driver in sorted((sys / platform.DRIVERS).glob("*/bind")):
        _place(sys, out, driver).touch()
    for table in (platform.EVERY_MACHINES_TABLE, *platform.IOMMU_TABLES):
        if (sys / platform.ACPI_TABLES / table).exists():
            _place(sys, out, sys / platform.ACPI_TABLES / table).touch()


def _record_processors(sys: Path, out: Path) -> None:
    for node in sorted((sys / processors.NODES).glob("node[0-9]*")):
        for name in processors.NODE_FILES:
            _copy_file(sys, out, node / name)
    for cpu in sorted((sys / processors.CPUS).glob("cpu[0-9]*")):
        _copy_file(sys, out, cpu / processors.SIBLINGS)


def _copy_device(sys: Path, out: Path, entry: Path, *, files: Iterable[str], links: Iterable[str]) -> Path | None:
    """Copy an entry of a bus or a class, and these files and links of its device; return the device's real path."""
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
