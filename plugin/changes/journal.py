"""The changes that gpu-plugin made to the node: former drivers and settings, to restore them, and the things that are
ours, so that nothing that somebody else made is removed. One file, and one lock.

    {"boot": "5f0e...", "version": 1,
     "former": {"0000:01:00.1": {"id": "10de:10f9", "driver": "snd_hda_intel", "override": null, "settings": {}}},
     "types": {"0000:41:00.4": {"number": 1155, "name": "NVIDIA L40S-24Q"}}, "mdevs": {},
     "functions": {"0000:41:00.0": 16}, "unprobed": []}

A boot undoes all changes, so the file of another boot counts as empty. An entry is written before the hardware is:
after a crash it may name a change that was never done. Facts that outlive a boot have their own files: the owners of
the Fabric Manager's partitions, and facts about a card that only NVIDIA's driver knows. So do the claims, which are the
kubelet's.

Version 0.1.0 wrote three files, `former-drivers.json`, `former-settings.json` and `vgpus.json`. They count until the
next change, which takes over their entries.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from pci.address import PCIAddress
from plugin import state_files
from plugin.state_files import NewerVersion, StateFile, json_of

T = TypeVar("T")

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Former:
    """The driver, override and settings of a function before it was bound to vfio. Another card in the same slot has
    another PCI `id`. `settings` are the former lines of files that bind changes, by name (`reset_method`)."""

    id: str
    driver: str | None
    override: str | None
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VGPUType:
    """A type of vGPUs: its number, which depends on card and driver, and its name."""

    number: int
    name: str


@dataclass(frozen=True, slots=True)
class Journal:
    """The changes that gpu-plugin made in the boot with this ID.

    `former` has the functions' former drivers, by address. gpu-plugin made the vGPUs in `types`, by their virtual
    function's address, and the mediated devices in `mdevs`, their parents by UUID. `functions` has the number of
    virtual functions that it turned on, by the card's address. `unprobed` are cards from whose new virtual functions
    the host's drivers are kept while these are made.
    """

    boot: str
    version: int = _VERSION
    former: Mapping[str, Former] = field(default_factory=dict)
    types: Mapping[str, VGPUType] = field(default_factory=dict)
    mdevs: Mapping[str, str] = field(default_factory=dict)
    functions: Mapping[str, int] = field(default_factory=dict)
    unprobed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _require(self.former, self.types, self.mdevs.values(), self.functions, self.unprobed)
        for uuid in self.mdevs:
            UUID(uuid)

    @property
    def ours(self) -> frozenset[str]:
        """The functions with something that gpu-plugin made."""
        return frozenset((*self.types, *self.mdevs.values(), *self.functions, *self.unprobed))

    def with_entry(self, part: str, name: str, entry: object) -> "Journal":
        """Return the journal with this entry in the mapping `part`, such as `former`."""
        return self._with(part, {**getattr(self, part), name: entry})

    def without(self, part: str, name: str) -> "Journal":
        return self._with(part, {each: entry for each, entry in getattr(self, part).items() if each != name})

    def _with(self, part: str, entries: Mapping[str, Any]) -> "Journal":
        changed: dict[str, Any] = {part: entries}
        return replace(self, **changed)

    def over(self, older: "Journal") -> "Journal":
        """Return the journal with the entries of an older one that it lacks."""
        return replace(
            self,
            former={**older.former, **self.former},
            types={**older.types, **self.types},
            mdevs={**older.mdevs, **self.mdevs},
            functions={**older.functions, **self.functions},
            unprobed=tuple(sorted({*older.unprobed, *self.unprobed})),
        )


def _require(*names: Iterable[str]) -> None:
    """Raise ValueError if one of these names is no address."""
    for each in names:
        for address in each:
            PCIAddress.parse(address)


@dataclass(frozen=True, slots=True)
class JournalFile:
    """The journal below the directory `state`, of the boot with this ID."""

    state: Path
    boot: str

    def read(self) -> Journal:
        """Return the journal of this boot; Broken if a file is not as gpu-plugin wrote it."""
        journal = self._file.recover() or Journal(self.boot)
        for older in (self._vgpus.recover(), self._older_former()):
            journal = journal if older is None else journal.over(older)
        return journal

    def _older_former(self) -> Journal:
        drivers, settings = self._drivers.recover(), self._settings.recover()
        former = {} if drivers is None else drivers.functions
        lines = {} if settings is None else settings.functions
        kept = {
            address: replace(each, settings=lines[address].settings)
            for address, each in former.items()
            if address in lines and lines[address].id == each.id
        }
        return Journal(self.boot, former={**former, **kept})

    def write(self, journal: Journal) -> None:
        """Replace the journal, whole or not at all; on return it is on the disk. Refusal if it cannot be written."""
        self._file.write(journal)
        for older in (self._vgpus, self._drivers, self._settings):
            older.remove()

    def change(self, change: Callable[[Journal], Journal]) -> None:
        """Replace the journal by the one that `change` returns for it; Refusal if it cannot be read or written."""
        before = self.read()
        if (after := change(before)) != before:
            self.write(after)

    def alone(self) -> AbstractContextManager[int]:
        """Keep out every other change of this node, and make the directory; Refusal if another change is in progress.

        A child that hangs in the kernel has the lock too, and keeps it until the kernel lets go.
        """
        wrong = "another bind or unbind is at work, or hangs in the kernel until a driver lets go"
        return state_files.locked(self.state / "lock", wrong, "try again when it is done")

    @property
    def _file(self) -> StateFile[Journal]:
        return self._named("journal", _read)

    # The files of version 0.1.0.

    @property
    def _vgpus(self) -> StateFile[Journal]:
        return self._named("vgpus", json_of(Journal, "version", "former"))

    @property
    def _drivers(self) -> "StateFile[_Drivers]":
        return self._named("former-drivers", json_of(_Drivers, "settings"))

    @property
    def _settings(self) -> "StateFile[_Settings]":
        return self._named("former-settings", json_of(_Settings))

    def _named(self, name: str, of: Callable[[bytes], T]) -> StateFile[T]:
        return StateFile(
            path=self.state / f"{name}.json",
            of=of,
            wrong="is not what gpu-plugin wrote",
            fix="remove it: unbind lets the kernel choose the drivers, and the vGPUs that are there are left to you",
            boot=self.boot,
        )


def _read(text: bytes) -> Journal:
    journal = json_of(Journal)(text)
    if journal.version != _VERSION:
        raise NewerVersion(f"version {journal.version}")
    return journal


@dataclass(frozen=True, slots=True)
class _Drivers:
    boot: str
    functions: Mapping[str, Former]

    def __post_init__(self) -> None:
        _require(self.functions)


@dataclass(frozen=True, slots=True)
class _Lines:
    id: str
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Settings:
    boot: str
    functions: Mapping[str, _Lines]

    def __post_init__(self) -> None:
        _require(self.functions)
