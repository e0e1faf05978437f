"""The writes to sysfs that move a function from one driver to another.

They use `driver_override` (kernel Documentation/ABI/testing/sysfs-bus-pci), which concerns one function; `new_id` also
concerns functions that are plugged in later. The override is written before the driver is unbound, so that no other
driver can take the function in between.
"""

from dataclasses import dataclass

from pci.address import PCIAddress
from pci.functions import is_vfio_driver
from pci.sysfs.functions import DEVICES
from plugin.changes.engine import Write

PROBE = "bus/pci/drivers_probe"


@dataclass(frozen=True, slots=True)
class DriverBinding:
    """The driver that has a function, and the only one that may take it (`driver_override`); None if there is none."""

    driver: str | None
    override: str | None

    @property
    def is_vfio(self) -> bool:
        """Whether vfio has the function, or alone may have it: an interrupted bind leaves the override behind."""
        return is_vfio_driver(self.driver) or is_vfio_driver(self.override)


def writes(address: PCIAddress, now: DriverBinding, target: DriverBinding | None) -> tuple[Write, ...]:
    """Return the writes that take a function from `now` to `target`, or to the kernel's choice."""
    function = f"{DEVICES}/{address}"
    unbind = (Write(f"{function}/driver/unbind", str(address)),) if now.driver is not None else ()
    probe = Write(PROBE, str(address))

    def override(before: str | None, after: str | None) -> tuple[Write, ...]:
        return (Write(f"{function}/driver_override", after or ""),) if before != after else ()

    if target is None:
        return (*override(now.override, None), *unbind, probe)
    if target.driver == now.driver:
        return override(now.override, target.override)
    if target.driver is None:
        return (*override(now.override, target.override), *unbind)
    # A probe asks every driver of the bus; during it the override names the wanted one.
    return (*override(now.override, target.driver), *unbind, probe, *override(target.driver, target.override))
