"""What is prepared on this node, in a file that outlives the plugin: for Unprepare, which is told a claim's name alone.

    {"version": 1, "checksum": "9f86d0...", "boot": "5f0e...", "claims": {"UID": {"namespace": "vms", "name": "gpu",
     "completed": true, "devices": [{"request": "gpu", "name": "pci-0000-41-00-0", "id": "0000:41:00.0",
     "bound": ["0000:41:00.0", "0000:41:00.1"]}]}}}

A boot ends every pod and undoes every binding, so what another boot wrote is prepared no more. Two plugins of one node,
as in a rolling update, go by the same file, one at a time.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

from plugin.dra.claims import Reference
from plugin.state_files import StateFile, json_of, locked_within

#: What to do where a file of the driver's cannot be read or written.
PLACE = "see the node's disk, and the plugin pod's mounts"

_VERSION = 1


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """A device that a claim has: for which request, its name in the slices, its ID in the inventory; and the functions
    that are bound to vfio for the claim, or were begun to be: none if vfio had it before."""

    request: str
    name: str
    id: str
    bound: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A claim that is prepared, or was begun to be: then `completed` is False, and nobody was told of it."""

    reference: Reference
    devices: tuple[PreparedDevice, ...]
    completed: bool


@dataclass(frozen=True, slots=True)
class _Claim:
    namespace: str
    name: str
    completed: bool
    devices: tuple[PreparedDevice, ...]


@dataclass(frozen=True, slots=True)
class _Claims:
    """All claims of a boot; ValueError if the checksum is another's."""

    version: int
    boot: str
    claims: Mapping[str, _Claim]
    checksum: str

    def __post_init__(self) -> None:
        if (self.version, self.checksum) != (_VERSION, _checksum(self.boot, self.claims)):
            raise ValueError("another version or checksum")


def _checksum(boot: str, claims: Mapping[str, _Claim]) -> str:
    document = {"version": _VERSION, "boot": boot, "claims": claims}
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=asdict).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The file, below `directory`, as this boot has it."""

    directory: Path
    boot: str

    def alone(self, at_most: float) -> AbstractAsyncContextManager[int]:
        """Keep every other plugin of this node out until the block ends; Refusal if one is at work for longer than so
        many seconds. The kernel ends it with the process."""
        return locked_within(at_most, self.directory / "lock", "see that one's log", PLACE)

    def read(self) -> Mapping[str, Prepared]:
        """Return what is prepared, by the claim's UID; Refusal if the file is not what was written."""
        kept = self._file.read()
        if kept is None or kept.boot != self.boot:
            return {}
        return {
            uid: Prepared(Reference(its.namespace, its.name, uid), its.devices, its.completed)
            for uid, its in kept.claims.items()
        }

    def write(self, claims: Mapping[str, Prepared]) -> None:
        """Replace what is prepared, whole or not at all; Refusal if it cannot be written."""
        kept = {
            uid: _Claim(its.reference.namespace, its.reference.name, its.completed, its.devices)
            for uid, its in sorted(claims.items())
        }
        self._file.write(_Claims(_VERSION, self.boot, kept, _checksum(self.boot, kept)))

    @property
    def _file(self) -> StateFile[_Claims]:
        return StateFile(
            path=self.directory / "checkpoint.json",
            of=json_of(_Claims),
            wrong="is not what the driver wrote, so which cards are taken is not known",
            fix="end the pods of this node that have ResourceClaims, and remove the file",
            place=PLACE,
            mode=0o600,
        )


def claimed(claims: Mapping[str, Prepared]) -> Mapping[str, str]:
    """Return the ResourceClaim (`namespace/name`) that each device is prepared for, by the device's ID."""
    return {device.id: str(prepared.reference) for prepared in claims.values() for device in prepared.devices}
