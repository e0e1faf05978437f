"""What the kernel does to its trees when a driver is bound or VFIO takes a group, done to copies of machines."""

import re
from pathlib import Path

from pci.sysfs import DEVICES, IOMMU_GROUPS, VFIO_DEV, read_host
from plugin.viability import is_on_vfio


def bind(sys: Path, address: str, driver: str | None) -> None:
    """Let a driver have the function, or none; `driver` and `uevent` change together, as in sysfs."""
    function = sys / DEVICES / address
    link = function / "driver"
    link.unlink(missing_ok=True)
    uevent = function / "uevent"
    lines = re.sub(r"^DRIVER=.*\n", "", uevent.read_text())
    if driver is not None:
        link.symlink_to(f"../../../../bus/pci/drivers/{driver}")
        lines = f"DRIVER={driver}\n{lines}"
    # Whoever looks meanwhile finds the old file or the new one.
    new = sys / f"{address}.uevent"
    new.write_text(lines)
    new.replace(uevent)


def unplug(sys: Path, address: str) -> None:
    """Take a function off the bus, and out of its group."""
    group = (sys / DEVICES / address / "iommu_group").readlink().name
    (sys / "unplugged").mkdir(exist_ok=True)
    (sys / DEVICES / address).rename(sys / "unplugged" / address)
    (sys / IOMMU_GROUPS / group / "devices" / address).rename(sys / "unplugged" / f"{address} in {group}")


def plug(sys: Path, address: str) -> None:
    """Put it back, as it was."""
    (member,) = (sys / "unplugged").glob(f"{address} in *")
    member.rename(sys / IOMMU_GROUPS / member.name.rpartition(" ")[2] / "devices" / address)
    (sys / "unplugged" / address).rename(sys / DEVICES / address)


def make_nodes(sys: Path, dev: Path, *, cdevs: bool = False) -> Path:
    """VFIO's nodes for what it has in that tree, as files: by group, and with `cdevs` for each function too. Returns
    the directory that stands for /dev."""
    (dev / "vfio").mkdir(parents=True)
    (dev / "vfio/vfio").touch()
    on_vfio = [function for function in read_host(sys).functions.values() if is_on_vfio(function)]
    for group in {function.iommu_group for function in on_vfio}:
        (dev / "vfio" / str(group)).touch()
    if cdevs:
        (dev / "iommu").touch()
        (dev / "vfio/devices").mkdir()
        for number, function in enumerate(on_vfio):
            name = f"vfio{number}"
            (sys / DEVICES / str(function.address) / VFIO_DEV / name).mkdir(parents=True, exist_ok=True)
            (dev / "vfio/devices" / name).touch()
    return dev
