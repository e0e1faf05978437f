"""What the node's functions had before they were bound to vfio, kept in a file; and one binder at a time.

    {"boot": "5f0e...", "functions": {"0000:01:00.1": {"id": "10de:10f9", "driver": "snd_hda_intel", "override": null}}}

A boot undoes every binding, so what another boot wrote is nothing to give back.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from pci.address import PCIAddress
from plugin import state_files
from plugin.binding.plan import DriverBinding, Former
from plugin.state_files import StateFile, json_of


@dataclass(frozen=True, slots=True)
class _Function:
    id: str
    driver: str | None
    override: str | None


@dataclass(frozen=True, slots=True)
class _Bound:
    boot: str
    functions: Mapping[str, _Function]

    def __post_init__(self) -> None:
        for address in self.functions:
            PCIAddress.parse(address)


def _file(state: Path) -> StateFile[_Bound]:
    return StateFile(
        path=state / "former-drivers.json",
        of=json_of(_Bound),
        wrong="is not what bind wrote",
        fix="remove it, and unbind lets the kernel choose the drivers",
        sync=False,  # a crash of the node undoes the bindings too
    )


def locked(state: Path) -> AbstractContextManager[int]:
    """Keep every other bind and unbind of this node out, and make the directory; Refusal if one is at work.

    A child that hangs in the kernel has the lock as well: while it does, nobody gets in.
    """
    wrong = "another bind or unbind is at work, or hangs in the kernel until a driver lets go"
    return state_files.locked(state / "lock", wrong, "try again when it is done")


def read_former(state: Path, boot: str) -> Mapping[PCIAddress, Former]:
    """Read the former drivers of this boot; none if nothing was ever written."""
    bound = _file(state).read()
    if bound is None or bound.boot != boot:
        return {}
    return {
        PCIAddress.parse(address): Former(its.id, DriverBinding(its.driver, its.override))
        for address, its in bound.functions.items()
    }


def write_former(state: Path, boot: str, former: Mapping[PCIAddress, Former]) -> None:
    """Replace the former drivers, whole or not at all; Refusal if they cannot be written."""
    functions = {
        str(address): _Function(its.pci_id, its.binding.driver, its.binding.override)
        for address, its in sorted(former.items())
    }
    _file(state).write(_Bound(boot, functions))
