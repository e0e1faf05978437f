"""The parts of a card as frozen values: its virtual functions, vGPUs and mediated devices, and those that can still be
made. pci.sysfs.vgpus reads them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pci.address import PCIAddress
from pci.host import Function, MediatedDevice


class MdevType(NamedTuple):
    """A type of mediated devices that a function has: its directory in sysfs (`nvidia-231`), its name (`GRID T4-1Q`, or
    the directory's where it has none), and how many can be made now."""

    directory: str
    name: str
    available: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A function of which vGPUs can be made.

    `takes_type`: it is a virtual function that becomes a vGPU by a type (nvidia/current_vgpu_type). `creatable` are the
    names of the types that it can become now, by number. `mdev_types` are those of its mediated devices.
    """

    function: Function
    takes_type: bool
    creatable: Mapping[int, str]
    mdev_types: tuple[MdevType, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutCard:
    """A physical function, and what it is cut into.

    `possible` is how many virtual functions it can have, 0 without SR-IOV. `autoprobe`: the kernel's drivers take new
    ones; None where that cannot be set. `quotas` are xe's by virtual function, from 1, and by file; of all possible
    ones if none exists. `places` and `functions` (the virtual ones) are ascending by address, `mdevs` by UUID.
    """

    function: Function
    possible: int
    autoprobe: bool | None
    quotas: Mapping[int, Mapping[str, int]]
    places: tuple[Place, ...]
    functions: tuple[Function, ...]
    mdevs: tuple[MediatedDevice, ...]

    @property
    def address(self) -> PCIAddress:
        return self.function.address
