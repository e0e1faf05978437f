"""The files by which a container gets a claim's devices: a specification for the container runtime (CDI), and for each
request a file that tells the container its devices (KEP-5304, pci.device_metadata).

One CDI device is one request of one claim: its device nodes, its file, the variable of the claim's partition of GPUs,
and for an extended resource the variable of the device plugin. A container gets the CDI devices of the requests that it
names.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pci import device_metadata
from pci.slices import DRIVER, Attributes
from plugin.allocation import Allocation
from plugin.dra.checkpoint import PLACE
from plugin.dra.claims import DriverClaim
from plugin.state_files import Broken, StateFile, write_json, write_text
from program.errors import Refusal

#: The version that introduced deviceNodes.hostPath, the newest field in use (CNCF's CDI specification, SPEC.md).
_VERSION = "0.5.0"
_KIND = f"{DRIVER}/claim"
_PREFIX = f"{DRIVER}-claim_"


class Files:
    """The places of the files: specifications in the runtime's directory `cdi`, metadata below the driver's own."""

    def __init__(self, cdi: Path, directory: Path) -> None:
        self._cdi = cdi
        self._metadata = directory / "metadata"

    def write(
        self,
        claim: DriverClaim,
        allocations: Mapping[str, Allocation],
        devices: Mapping[str, Sequence[tuple[str, Attributes]]],
        env: Mapping[str, str],
        pool: str,
    ) -> None:
        """Write all files of a claim, from the allocations and the devices (name and attributes) of each request, and
        the variables `env` of every container. Refusal if a file cannot be written."""
        uid = claim.reference.uid
        for request, its in devices.items():
            text = device_metadata.encode(metadata(claim, request, its, pool))
            write_text(self._file(uid, request), text, PLACE, mode=0o644)
        specification = {
            "cdiVersion": _VERSION,
            "kind": _KIND,
            "devices": [
                {"name": _name(uid, request), "containerEdits": self._edits(claim, request, allocations[request], env)}
                for request in sorted(allocations)
            ],
        }
        write_json(self._specification(uid), specification, PLACE, mode=0o644)

    def remove(self, uid: str) -> None:
        """Remove all files of a claim; Refusal if one is left."""
        try:
            # The specification first: if a file that it names is gone, the runtime starts no containers.
            self._specification(uid).unlink(missing_ok=True)
            directory = self._metadata / uid
            if directory.is_dir():
                for file in directory.iterdir():
                    file.unlink()
                directory.rmdir()
        except OSError as error:
            raise Refusal(
                error.filename or self._cdi, f"cannot be removed: {error.strerror}", "see the plugin pod's mounts"
            ) from error

    def are_whole(self, uid: str, requests: Iterable[str]) -> bool:
        """Whether the claim has a specification of these requests and a file for each, all of them whole and its
        own."""
        of_requests = {request: _read(self._file(uid, request), _documents) for request in requests}
        match _read(self._specification(uid), json.loads):
            case {"kind": str(kind), "devices": [*devices]} if kind == _KIND:
                names = [each.get("name") for each in devices if isinstance(each, dict)]
            case _:
                return False
        return sorted(map(str, names)) == sorted(_name(uid, each) for each in of_requests) and all(
            documents and all(_is_of(document, uid, request) for document in documents)
            for request, documents in of_requests.items()
        )

    def claims(self) -> frozenset[str]:
        """Return the UIDs of all claims that have a file."""
        specifications = self._cdi.glob(f"{_PREFIX}*.json") if self._cdi.is_dir() else ()
        directories = self._metadata.iterdir() if self._metadata.is_dir() else ()
        return frozenset(
            {path.name.removeprefix(_PREFIX).removesuffix(".json") for path in specifications}
            | {path.name for path in directories}
        )

    def has_specifications(self) -> bool:
        """Whether a claim has a specification."""
        return self._cdi.is_dir() and any(self._cdi.glob(f"{_PREFIX}*.json"))

    def _specification(self, uid: str) -> Path:
        return self._cdi / f"{_PREFIX}{uid}.json"

    def _file(self, uid: str, request: str) -> Path:
        return self._metadata / uid / f"{request}.json"

    def _edits(
        self, claim: DriverClaim, request: str, allocation: Allocation, env: Mapping[str, str]
    ) -> dict[str, Any]:
        reference = claim.reference
        where = (
            device_metadata.of_claim(reference.name, request)
            if claim.pod_claim is None
            else device_metadata.of_template(claim.pod_claim, request)
        )
        edits: dict[str, Any] = {
            "deviceNodes": [{"path": node, "hostPath": node, "permissions": "rw"} for node in allocation.nodes],
            "mounts": [
                {
                    "hostPath": str(self._file(reference.uid, request)),
                    "containerPath": str(device_metadata.IN_CONTAINER / where / f"{DRIVER}{device_metadata.SUFFIX}"),
                    "options": ["ro", "bind", "nosuid", "nodev", "noexec"],
                }
            ],
        }
        if claim.of_a_resource:
            env = {**allocation.env, **env}
        if env:
            edits["env"] = [f"{name}={value}" for name, value in env.items()]
        return edits


def device_id(uid: str, request: str) -> str:
    """Return the name of the CDI device of a claim's request, for the kubelet."""
    return f"{_KIND}={_name(uid, request)}"


def _name(uid: str, request: str) -> str:
    return f"{uid}_{request}"


def _read(file: Path, of: Callable[[bytes], Any]) -> Any:
    """Return what `of` makes of a file; None if the file does not exist or is not whole."""
    try:
        return StateFile(path=file, of=of, wrong="is no JSON", fix="").read()
    except Broken:
        return None


def _documents(text: bytes) -> list[Any]:
    return [*device_metadata.documents(text.decode())]


def _is_of(document: Any, uid: str, request: str) -> bool:
    """Whether a document tells a container the devices of this request of the claim."""
    match document:
        case {"metadata": {"uid": str(its)}, "requests": [{"name": str(name), "devices": [_, *_]}]}:
            return (its, name) == (uid, request)
        case _:
            return False


def metadata(claim: DriverClaim, request: str, devices: Sequence[tuple[str, Attributes]], pool: str) -> dict[str, Any]:
    """Return the document that tells a container the devices of a request: their names and attributes."""
    reference = claim.reference
    document: dict[str, Any] = {
        "kind": "DeviceMetadata",
        "metadata": {
            "name": reference.name,
            "namespace": reference.namespace,
            "uid": reference.uid,
            "generation": 1,
        },
        "requests": [
            {
                "name": request,
                "devices": [
                    {"driver": DRIVER, "pool": pool, "name": name, "attributes": attributes}
                    for name, attributes in devices
                ],
            }
        ],
    }
    if claim.pod_claim is not None:
        document["podClaimName"] = claim.pod_claim
    return document
