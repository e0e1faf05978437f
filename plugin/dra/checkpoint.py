"""The claims that are prepared on this node, in a file that outlives the plugin: Unprepare gets only a claim's name.

    {"version": 1, "checksum": "9f86d0...", "boot": "5f0e...", "claims": {"UID": {"namespace": "vms", "name": "gpu",
     "completed": true, "devices": [{"request": "gpu", "name": "pci-0000-41-00-0", "id": "0000:41:00.0",
     "bound": ["0000:41:00.0", "0000:41:00.1"]}]}}}

A boot ends every pod and undoes every binding, so the file of another boot has no prepared claims. Two plugins of one
node, as in a rolling update, use the same file, one at a time.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

from pci.slices import is_vgpu
from plugin.state_files import Broken, Lost, StateFile, json_of, locked_within

#: The fix if one of the driver's files cannot be read or written.
PLACE = "see the node's disk, and the plugin pod's mounts"

_VERSION = 1

_log = logging.getLogger(__name__)


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
        """Whether the device is a vGPU that is made for the claim."""
        return is_vgpu(self.name)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared claim; `completed` is False while it is being prepared and its pod has no device of it."""

    namespace: str
    name: str
    completed: bool
    devices: tuple[PreparedDevice, ...]

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class _Claims:
    """All claims of a boot."""

    version: int
    boot: str
    claims: Mapping[str, Prepared]
    checksum: str


def _checksum(document: Mapping[str, object]) -> str:
    """Return the checksum of all other fields, also of fields that this version does not know."""
    others = {name: each for name, each in document.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(others, sort_keys=True, default=asdict).encode()).hexdigest()


def _read(text: bytes) -> _Claims:
    """Read the file; ValueError if it is of another version, or its checksum is wrong."""
    document = json.loads(text)
    if not isinstance(document, dict) or document.get("version") != _VERSION:
        raise ValueError(f"it is not of version {_VERSION}, which this gpu-plugin reads")
    if document.get("checksum") != _checksum(document):
        raise ValueError("its checksum is wrong")
    return json_of(_Claims)(text)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The checkpoint file of this boot, below `directory`."""

    directory: Path
    boot: str

    def alone(self, at_most: float) -> AbstractAsyncContextManager[int]:
        """Keep out every other plugin of this node until the block ends; Refusal if another holds the lock for more
        than `at_most` seconds. The kernel releases the lock when the process ends."""
        return locked_within(at_most, self.directory / "lock", "see that one's log", PLACE)

    def read(self) -> Mapping[str, Prepared]:
        """Return the claims by UID; Broken if the file is not as it was written. A lost file does not count as empty:
        claims of this boot may have cards."""
        kept = self._file.read()
        return {} if kept is None else kept.claims

    def write(self, claims: Mapping[str, Prepared]) -> None:
        """Replace all claims, whole or not at all; Refusal if they cannot be written."""
        document = {"version": _VERSION, "boot": self.boot, "claims": (kept := dict(sorted(claims.items())))}
        self._file.write(_Claims(_VERSION, self.boot, kept, _checksum(document)))

    def renew_if_lost(self, *, is_used: bool) -> None:
        """Replace a lost file, unless it `is_used`: claims have CDI specifications, and a boot empties their directory
        (/var/run/cdi). Refusal if it cannot be written."""
        try:
            self._file.read()
        except Lost as lost:
            if not is_used:
                _log.warning("it is written anew, as no claim has been prepared since the boot: %s", lost)
                self.write({})
        except Broken:
            pass

    @property
    def _file(self) -> StateFile[_Claims]:
        return StateFile(
            path=self.directory / "checkpoint.json",
            of=_read,
            wrong="is not what the driver wrote, so which cards are taken is not known",
            fix="end the pods of this node that have ResourceClaims, and remove the file",
            place=PLACE,
            mode=0o600,
            boot=self.boot,
        )


def claimed(claims: Mapping[str, Prepared]) -> Mapping[str, str]:
    """Return the ResourceClaim (`namespace/name`) that each device is prepared for, by the device's ID."""
    return {device.id: str(prepared) for prepared in claims.values() for device in prepared.devices}
