"""What the kernel does to its trees when a driver is bound or VFIO takes a group, done to copies of machines."""

import re
from pathlib import Path

from pci.sysfs import VFIO_DEV, read_host
from plugin.viability import is_on_vfio


def bind(sys: Path, address: str, driver: str | None) -> None:
    """Let a driver have the function, or none; `driver` and `uevent` change together, as in sysfs."""
    function = sys / "bus/pci/devices" / address
    link = function / "driver"
    link.unlink(missing_ok=True)
    uevent = function / "uevent"
    lines = re.sub(r"^DRIVER=.*\n", "", uevent.read_text())
    if driver is not None:
        link.symlink_to(f"../../../../bus/pci/drivers/{driver}")
        lines = f"DRIVER={driver}\n{lines}"
    uevent.write_text(lines)


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
            (sys / "bus/pci/devices" / str(function.address) / VFIO_DEV / name).mkdir(parents=True, exist_ok=True)
            (dev / "vfio/devices" / name).touch()
    return dev
