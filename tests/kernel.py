"""What the kernel does to its trees when a driver is bound, done to a copy of a recorded machine."""

import re
from pathlib import Path


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
