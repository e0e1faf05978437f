"""What Kubernetes' Dynamic Resource Allocation gave the pod: the device of each request of a ResourceClaim.

A DRA driver leaves a file for each request in the container (KEP-5304, "DRA device attributes downward API"):

    resourceclaims/CLAIM/REQUEST/DRIVER-metadata.json                a claim by its name
    resourceclaimtemplates/NAME/REQUEST/DRIVER-metadata.json         one made from a template, by its name in the pod

It is a stream of JSON documents that say the same in several versions of its format. A request of several devices, or
of several drivers, is none of KubeVirt's either: an entry of the manifest is one device.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from launcher.claims import Device, Entry
from launcher.errors import UserError
from launcher.manifest.hostdevices import Request, ResourceClaim
from pci.address import InvalidPCIAddress, PCIAddress

#: Where the files are in a pod.
IN_POD = Path("/var/run/kubernetes.io/dra-device-attributes")

_VERSION = "metadata.resource.k8s.io/v1alpha1"
_SUFFIX = "-metadata.json"
_PCI = "resource.kubernetes.io/pciBusID"
_MDEV = "mdevUUID"


class _Wrong(Exception):
    """What is wrong with a file or a directory, in words that follow its path."""


def read_allocated(
    entries: Iterable[Entry], claims: tuple[ResourceClaim, ...], directory: Path | None
) -> Mapping[Request, Device]:
    """The device of each entry that is a request. `directory` holds the files; None where there is none.

    UserError, naming entry, claim, request and path, for a file that is missing or does not name one device.
    """
    by_name = {claim.name: claim for claim in claims}
    found: dict[Request, Device] = {}
    for entry in entries:
        request = entry.wants
        if not isinstance(request, Request):
            continue
        if directory is None:
            raise UserError(
                f"{entry} is {request}: what DRA gave for it is not known; "
                f"expected --dra DIR, a copy of the pod's {IN_POD}"
            )
        path = _directory(directory, by_name[request.claim], request)
        try:
            path = _file(path)
            found[request] = _device(_metadata(path), request)
        except _Wrong as wrong:
            raise UserError(f"{entry} is {request}, but {path}: {wrong}") from wrong
        except OSError as error:
            raise UserError(
                f"{entry} is {request}, but {path}: {error.strerror}; expected a DRA driver's file *{_SUFFIX} there: "
                "its driver has to publish device metadata (KEP-5304)"
            ) from error
    return found


def _directory(directory: Path, claim: ResourceClaim, request: Request) -> Path:
    if claim.resourceClaimName is not None:
        return directory / "resourceclaims" / claim.resourceClaimName / request.name
    return directory / "resourceclaimtemplates" / claim.name / request.name


def _file(directory: Path) -> Path:
    names = sorted(entry.name for entry in directory.iterdir() if entry.name.endswith(_SUFFIX))
    if len(names) != 1:
        raise _Wrong(f"has {', '.join(names) or 'no file'}; expected one file *{_SUFFIX}: a request of one driver")
    return directory / names[0]


def _metadata(path: Path) -> dict[str, Any]:
    """The first document of a version that is known here."""
    versions = []
    for document in _documents(path):
        if not isinstance(document, dict) or not isinstance(version := document.get("apiVersion"), str):
            raise _Wrong(f"has a document without apiVersion; expected apiVersion: {_VERSION}")
        if version == _VERSION:
            return document
        versions.append(version)
    raise _Wrong(f"is of {', '.join(versions) or 'no version'}; expected a document of {_VERSION}")


def _documents(path: Path) -> Iterator[Any]:
    try:
        text = path.read_text(encoding="utf-8").rstrip()
        end = 0
        while end < len(text):
            start = len(text) - len(text[end:].lstrip())
            document, end = json.JSONDecoder().raw_decode(text, start)
            yield document
    except (ValueError, RecursionError) as error:
        raise _Wrong(f"is not JSON: {error}") from error


def _device(metadata: dict[str, Any], request: Request) -> Device:
    requests = _objects(metadata, "requests")
    asked = next((found for found in requests if found.get("name") == request.name), None)
    if asked is None:
        names = ", ".join(str(found.get("name")) for found in requests)
        raise _Wrong(f"has {f'the requests {names}' if names else 'no requests'}; expected {request.name}")
    devices = _objects(asked, "devices")
    if len(devices) != 1:
        raise _Wrong(f"has {len(devices)} devices; expected one: a request of count 1 for each entry")
    attributes = devices[0].get("attributes") or {}
    # A mediated device may have its parent's address beside its UUID.
    if (uuid := _string(attributes, _MDEV)) is not None:
        try:
            return UUID(uuid)
        except ValueError:
            raise _Wrong(f"{_MDEV}: {uuid!r} is not a UUID") from None
    if (address := _string(attributes, _PCI)) is not None:
        try:
            return PCIAddress.parse(address)
        except InvalidPCIAddress as error:
            raise _Wrong(f"{_PCI}: {error}") from None
    raise _Wrong(f"its device has neither {_PCI} nor {_MDEV}; expected one of them, as a string")


def _objects(parent: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = parent.get(name) or []
    if not (isinstance(found, list) and all(isinstance(each, dict) for each in found)):
        raise _Wrong(f"{name} is no list of objects; expected DRA's device metadata")
    return found


def _string(attributes: Any, name: str) -> str | None:
    """The value of {"name": {"string": "value"}}; None where it is missing, empty or of another type."""
    match attributes.get(name) if isinstance(attributes, dict) else None:
        case {"string": str(text)} if text:
            return text
        case _:
            return None
