"""The writes to sysfs that move a function from one driver to another, and that undo it.

They use `driver_override` (kernel Documentation/ABI/testing/sysfs-bus-pci), which concerns one function; `new_id` also
concerns functions that are plugged in later. A function's override is written before its driver is unbound, so that no
other driver can take the function in between.
"""

from dataclasses import dataclass

from pci.address import PCIAddress
from pci.functions import is_vfio_driver
from pci.sysfs.functions import DEVICES
from plugin.changes.journal import Former

_PROBE = "bus/pci/drivers_probe"


@dataclass(frozen=True, slots=True)
class DriverBinding:
    """The driver that has a function, and the only one that may take it (`driver_override`); None if there is none."""

    driver: str | None
    override: str | None

    @property
    def is_vfio(self) -> bool:
        """Whether vfio has the function, or alone may have it: an interrupted bind leaves the override behind."""
        return is_vfio_driver(self.driver) or is_vfio_driver(self.override)


@dataclass(frozen=True, slots=True)
class Write:
    """The line `text` for the file `path` below /sys; as a string it is a shell command."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"echo {self.text} > /sys/{self.path}" if self.text else f"echo > /sys/{self.path}"


@dataclass(frozen=True, slots=True)
class Setting:
    """A change of a function's file `name`, d3cold_allowed or reset_method: the line in it before, and after."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The move of a function from one driver to another. `target` is None if the kernel is to choose. `former` is
    remembered while vfio has the function; None for a move back. `settings` change with the driver, so that they are in
    force whenever vfio has the function: a function that vfio takes may lose its power at once."""

    address: PCIAddress
    now: DriverBinding
    target: DriverBinding | None
    former: Former | None
    settings: tuple[Setting, ...] = ()

    @property
    def writes(self) -> tuple[Write, ...]:
        moving = writes(self.address, self.now, self.target)
        settings = tuple(self._write(setting.name, setting.after) for setting in self.settings)
        return (*moving, *settings) if self.former is None else (*settings, *moving)

    def undoing(self, now: DriverBinding) -> tuple[Write, ...]:
        """Return the writes that undo the move, however far it came: the function has the driver `now`."""
        moving = writes(self.address, now, self.now)
        settings = tuple(self._write(setting.name, setting.before) for setting in self.settings)
        return (*settings, *moving) if self.former is None else (*moving, *settings)

    def _write(self, name: str, text: str) -> Write:
        return Write(f"{DEVICES}/{self.address}/{name}", text)


def writes(address: PCIAddress, now: DriverBinding, target: DriverBinding | None) -> tuple[Write, ...]:
    """Return the writes that take a function from `now` to `target`, or to the kernel's choice."""
    function = f"{DEVICES}/{address}"
    unbind = (Write(f"{function}/driver/unbind", str(address)),) if now.driver is not None else ()
    probe = Write(_PROBE, str(address))

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
