"""The file of the former drivers of functions that vfio has; and the lock that admits one binder at a time.

    {"boot": "5f0e...", "functions": {"0000:01:00.1": {"id": "10de:10f9", "driver": "snd_hda_intel", "override": null}}}

A boot undoes every binding, so the file of another boot has nothing to give back. Other settings that bind changes are
in a second file, so that an older plugin can read this one's first file, and vice versa:

    {"boot": "5f0e...", "functions": {"0000:01:00.0": {"id": "10de:2b85", "settings": {"reset_method": "flr bus"}}}}
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from pci.address import PCIAddress
from plugin import state_files
from plugin.binding.moves import Former
from plugin.state_files import StateFile, json_of


@dataclass(frozen=True, slots=True)
class _Driver:
    id: str
    driver: str | None
    override: str | None


@dataclass(frozen=True, slots=True)
class _Bound:
    boot: str
    functions: Mapping[str, _Driver]

    def __post_init__(self) -> None:
        for address in self.functions:
            PCIAddress.parse(address)


@dataclass(frozen=True, slots=True)
class FormerLines:
    """The lines that files of the function with this PCI ID had, by name."""

    id: str
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class FormerSettings:
    """What was otherwise in this boot, by address."""

    boot: str
    functions: Mapping[str, FormerLines]

    def __post_init__(self) -> None:
        for address in self.functions:
            PCIAddress.parse(address)


def _drivers(state: Path, boot: str) -> StateFile[_Bound]:
    return StateFile(
        path=state / "former-drivers.json",
        of=json_of(_Bound),
        wrong="is not what bind wrote",
        fix="remove it, and unbind lets the kernel choose the drivers",
        boot=boot,
    )


def settings_file(state: Path, boot: str) -> StateFile[FormerSettings]:
    """Return the file of what vfio's functions had otherwise before."""
    return StateFile(
        path=state / "former-settings.json",
        of=json_of(FormerSettings),
        wrong="is not what bind wrote",
        fix="remove it, and unbind leaves reset_method and d3cold_allowed as they are",
        boot=boot,
    )


def locked(state: Path) -> AbstractContextManager[int]:
    """Keep every other bind and unbind of this node out, and make the directory; Refusal if one is at work.

    A child that hangs in the kernel has the lock too, and keeps it until the kernel lets go.
    """
    wrong = "another bind or unbind is at work, or hangs in the kernel until a driver lets go"
    return state_files.locked(state / "lock", wrong, "try again when it is done")


def read_former(state: Path, boot: str) -> Mapping[PCIAddress, Former]:
    """Read the former drivers and settings of this boot; Broken if a file is not what bind wrote."""
    bound, every = _drivers(state, boot).recover(), settings_file(state, boot).recover()
    if bound is None:
        return {}
    settings = {} if every is None else every.functions
    former = {}
    for address, its in bound.functions.items():
        also = settings.get(address)
        kept = also.settings if also is not None and also.id == its.id else {}
        former[PCIAddress.parse(address)] = Former(its.id, its.driver, its.override, kept)
    return former


def write_former(state: Path, boot: str, former: Mapping[PCIAddress, Former]) -> None:
    """Replace the former drivers, whole or not at all, after the settings; Refusal if they cannot be written."""
    ours = sorted(former.items())
    settings = {str(address): FormerLines(its.id, its.settings) for address, its in ours if its.settings}
    if settings or settings_file(state, boot).path.exists():
        settings_file(state, boot).write(FormerSettings(boot, settings))
    drivers = {str(address): _Driver(its.id, its.driver, its.override) for address, its in ours}
    _drivers(state, boot).write(_Bound(boot, drivers))
