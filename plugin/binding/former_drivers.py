"""The file of the former drivers of functions that vfio has; and the lock that admits one binder at a time.

    {"boot": "5f0e...", "functions": {"0000:01:00.1": {"id": "10de:10f9", "driver": "snd_hda_intel", "override": null}}}

A boot undoes every binding, so the file of another boot has nothing to give back.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from pci.address import PCIAddress
from plugin import state_files
from plugin.binding.plan import Former
from plugin.state_files import StateFile, json_of


@dataclass(frozen=True, slots=True)
class _Bound:
    boot: str
    functions: Mapping[str, Former]

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

    A child that hangs in the kernel has the lock too, and keeps it until the kernel lets go.
    """
    wrong = "another bind or unbind is at work, or hangs in the kernel until a driver lets go"
    return state_files.locked(state / "lock", wrong, "try again when it is done")


def read_former(state: Path, boot: str) -> Mapping[PCIAddress, Former]:
    """Read the former drivers of this boot; Refusal if the file is not what bind wrote."""
    bound = _file(state).read()
    if bound is None or bound.boot != boot:
        return {}
    return {PCIAddress.parse(address): its for address, its in bound.functions.items()}


def write_former(state: Path, boot: str, former: Mapping[PCIAddress, Former]) -> None:
    """Replace the former drivers, whole or not at all; Refusal if they cannot be written."""
    _file(state).write(_Bound(boot, {str(address): its for address, its in sorted(former.items())}))
