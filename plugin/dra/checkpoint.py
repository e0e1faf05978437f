"""What is prepared on this node, in a file that outlives the plugin: for Unprepare, which is told a claim's name alone.

    {"version": 1, "checksum": "9f86d0...", "boot": "5f0e...", "claims": {"UID": {"namespace": "vms", "name": "gpu",
     "completed": true, "devices": [{"request": "gpu", "name": "pci-0000-41-00-0", "id": "0000:41:00.0",
     "bound": ["0000:41:00.0", "0000:41:00.1"]}]}}}

A boot ends every pod and undoes every binding, so what another boot wrote is prepared no more. Two plugins of one node,
as in a rolling update, go by the same file, one at a time.
"""

import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from plugin.dra.claims import Reference
from plugin.state_files import lock_within, write_whole
from program.errors import Refusal

_FILE = "checkpoint.json"
_LOCK = "lock"
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


class Checkpoint:
    """The file, below `directory`, as this boot has it."""

    def __init__(self, directory: Path, boot: str) -> None:
        self._directory = directory
        self._boot = boot

    @property
    def path(self) -> Path:
        return self._directory / _FILE

    @contextlib.asynccontextmanager
    async def alone(self, at_most: float) -> AsyncIterator[None]:
        """Keep every other plugin of this node out until the block ends; Refusal if one is at work for longer than so
        many seconds. The kernel ends it with the process."""
        try:
            directories(self._directory)
            lock = (self._directory / _LOCK).open("ab")
        except OSError as error:
            raise _cannot_write(self._directory, error) from error
        with lock:
            try:
                await lock_within(lock, at_most)
            except TimeoutError:
                wrong = f"is held by another plugin for more than {at_most:g} s"
                raise Refusal(lock.name, wrong, "see that one's log") from None
            yield

    def read(self) -> Mapping[str, Prepared]:
        """Return what is prepared, by the claim's UID; Refusal if the file is not what was written."""
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
            if document["checksum"] != _checksum(document) or document["version"] != _VERSION:
                raise ValueError("another checksum or version")
            if document["boot"] != self._boot:
                return {}
            return {uid: _prepared(uid, entry) for uid, entry in document["claims"].items()}
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise Refusal(self.path, f"cannot be read: {error.strerror}", "see the node's disk") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Refusal(
                self.path,
                "is not what the driver wrote, so which cards are taken is not known",
                "end the pods of this node that have ResourceClaims, and remove the file",
            ) from error

    def write(self, claims: Mapping[str, Prepared]) -> None:
        """Replace what is prepared, whole or not at all; Refusal if it cannot be written."""
        document: dict[str, Any] = {
            "version": _VERSION,
            "boot": self._boot,
            "claims": {uid: _entry(claims[uid]) for uid in sorted(claims)},
        }
        document["checksum"] = _checksum(document)
        write_file(self.path, json.dumps(document, indent=1) + "\n", mode=0o600, sync=True)


def claimed(claims: Mapping[str, Prepared]) -> Mapping[str, str]:
    """Return the ResourceClaim (`namespace/name`) that each device is prepared for, by the device's ID."""
    return {device.id: str(prepared.reference) for prepared in claims.values() for device in prepared.devices}


def directories(path: Path) -> None:
    """Make a directory and those above it, for others to look into, whatever the umask is."""
    for directory in (*reversed(path.parents), path):
        if not directory.is_dir():
            with contextlib.suppress(FileExistsError):
                directory.mkdir()
                directory.chmod(0o755)


def write_file(path: Path, text: str, *, mode: int, sync: bool = False) -> None:
    """Replace a file whole, and make its directory; `sync` is for what means something after a crash of the node.
    Refusal if that fails."""
    try:
        directories(path.parent)
        write_whole(path, text, mode=mode, sync=sync)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> Refusal:
    return Refusal(path, f"cannot be written: {error.strerror}", "see the node's disk, and the plugin pod's mounts")


def _checksum(document: Mapping[str, Any]) -> str:
    rest = {name: document[name] for name in document if name != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _entry(prepared: Prepared) -> dict[str, Any]:
    return {
        "namespace": prepared.reference.namespace,
        "name": prepared.reference.name,
        "completed": prepared.completed,
        "devices": [asdict(device) for device in prepared.devices],
    }


def _prepared(uid: str, entry: Mapping[str, Any]) -> Prepared:
    return Prepared(
        Reference(entry["namespace"], entry["name"], uid),
        tuple(PreparedDevice(**{**device, "bound": tuple(device["bound"])}) for device in entry["devices"]),
        entry["completed"],
    )
