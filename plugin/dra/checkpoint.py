"""The claims that are prepared on this node, in a file that outlives the plugin: Unprepare gets only a claim's name.

    {"version": 1, "checksum": "9f86d0...", "boot": "5f0e...", "claims": {"UID": {"namespace": "vms", "name": "gpu",
     "completed": true, "devices": [{"request": "gpu", "name": "pci-0000-41-00-0", "id": "0000:41:00.0",
     "bound": ["0000:41:00.0", "0000:41:00.1"]}]}}}

A boot ends every pod and undoes every binding, so the file of another boot has no prepared claims. Two plugins of one
node, as in a rolling update, use the same file, one at a time.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

from plugin.cards.claimable import PREFIX
from plugin.state_files import StateFile, json_of, locked_within

#: What to do where a file of the driver's cannot be read or written.
PLACE = "see the node's disk, and the plugin pod's mounts"

_VERSION = 1


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """A device that a claim has: the request, its name in the slices, its ID in the inventory. `bound` are functions
    that are, or are being, bound to vfio for the claim; none if vfio had the device before. The ID of a vGPU that is,
    or is being, made for the claim is its virtual function's address, or the mediated device's UUID."""

    request: str
    name: str
    id: str
    bound: tuple[str, ...] = ()

    @property
    def is_made(self) -> bool:
        """Whether it is a vGPU that is made for the claim."""
        return self.name.startswith(PREFIX)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared claim; `completed` is False while it is being prepared, and its pod has none of it."""

    namespace: str
    name: str
    completed: bool
    devices: tuple[PreparedDevice, ...]

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class _Claims:
    """All claims of a boot; ValueError if the checksum is wrong."""

    version: int
    boot: str
    claims: Mapping[str, Prepared]
    checksum: str

    def __post_init__(self) -> None:
        if (self.version, self.checksum) != (_VERSION, _checksum(self.boot, self.claims)):
            raise ValueError("another version or checksum")


def _checksum(boot: str, claims: Mapping[str, Prepared]) -> str:
    document = {"version": _VERSION, "boot": boot, "claims": claims}
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=asdict).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The file, below `directory`, as this boot has it."""

    directory: Path
    boot: str

    def alone(self, at_most: float) -> AbstractAsyncContextManager[int]:
        """Keep every other plugin of this node out until the block ends; Refusal if one is at work for longer than so
        many seconds. The kernel gives up the lock with the process."""
        return locked_within(at_most, self.directory / "lock", "see that one's log", PLACE)

    def read(self) -> Mapping[str, Prepared]:
        """Return the claims by UID; Refusal if the file is not what was written."""
        kept = self._file.read()
        return {} if kept is None or kept.boot != self.boot else kept.claims

    def write(self, claims: Mapping[str, Prepared]) -> None:
        """Replace all claims, whole or not at all; Refusal if they cannot be written."""
        kept = dict(sorted(claims.items()))
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
    return {device.id: str(prepared) for prepared in claims.values() for device in prepared.devices}
