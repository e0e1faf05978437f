"""The file in which a DRA driver tells a container the device of a request (KEP-5304, "DRA device attributes downward
API"). The launcher reads it; its path below the directory, and what is in it:

    resourceclaims/CLAIM/REQUEST/DRIVER-metadata.json                a claim by its name
    resourceclaimtemplates/NAME/REQUEST/DRIVER-metadata.json         one made from a template, by its name in the pod

    {"apiVersion": "metadata.resource.k8s.io/v1beta1", "requests": [{"name": "gpu", "devices": [
        {"attributes": {"resource.kubernetes.io/pciBusID": {"string": "0000:41:00.0"}}}]}]}

The file is a stream of JSON documents that say the same in several versions of the format, the newest first. A request
of several devices, or of several drivers, is refused: an entry of the manifest is one device, for KubeVirt too.
"""

import json
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any
from uuid import UUID

from pci.address import InvalidPCIAddress, PCIAddress

#: Where the files are in a container.
IN_CONTAINER = Path("/var/run/kubernetes.io/dra-device-attributes")
#: The end of each file's name, after the driver's name.
SUFFIX = "-metadata.json"

#: The versions, the newest first, with the same fields. Kubernetes 1.36 has v1alpha1 alone; a driver for 1.37 writes
#: v1beta1, and v1alpha1 only if it likes (k8s.io/dynamic-resource-allocation, kubeletplugin/draplugin.go).
VERSIONS = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")
_EXPECTED = " or ".join(VERSIONS)
_PCI = "resource.kubernetes.io/pciBusID"
_MDEV = "mdevUUID"


class InvalidMetadata(ValueError):
    """The file does not name one device: what is `wrong`, in words after its path, and the `fix`."""

    def __init__(self, wrong: str, fix: str = "the DRA driver that wrote it may say why in its log") -> None:
        super().__init__(wrong, fix)
        self.wrong = wrong
        self.fix = fix


def of_claim(claim: str, request: str) -> PurePath:
    """Return the directory of a request of the claim with this name."""
    return PurePath("resourceclaims", claim, request)


def of_template(name: str, request: str) -> PurePath:
    """Return the directory of a request of a claim from a template; `name` is the pod's name for the claim."""
    return PurePath("resourceclaimtemplates", name, request)


def decode(text: str, request: str) -> PCIAddress | UUID:
    """Return the one device of a request, a PCI address or a mediated device's UUID, by the first document of a known
    version. Raise InvalidMetadata if the file is malformed or does not name one device."""
    requests = _objects(_document(text), "requests")
    # Of a request of alternatives (firstAvailable) the name is REQUEST/ALTERNATIVE here, and REQUEST in the path.
    entry = next((each for each in requests if str(each.get("name")).partition("/")[0] == request), None)
    if entry is None:
        names = ", ".join(str(each.get("name")) for each in requests)
        raise InvalidMetadata(f"has {f'the requests {names}' if names else 'no requests'}", f"expected {request}")
    devices = _objects(entry, "devices")
    if len(devices) != 1:
        raise InvalidMetadata(f"has {len(devices)} devices", "expected one: a request of count 1 for each entry")
    attributes = devices[0].get("attributes") or {}
    # A mediated device may have its parent's address beside its UUID.
    if (uuid := _string(attributes, _MDEV)) is not None:
        try:
            return UUID(uuid)
        except ValueError:
            raise InvalidMetadata(f"{_MDEV}: {uuid!r} is not a UUID") from None
    if (address := _string(attributes, _PCI)) is not None:
        try:
            return PCIAddress.parse(address)
        except InvalidPCIAddress as error:
            raise InvalidMetadata(f"{_PCI}: {error.wrong}", error.fix) from None
    raise InvalidMetadata(f"its device has neither {_PCI} nor {_MDEV}", "expected one of them, as a string")


def _document(text: str) -> dict[str, Any]:
    versions = []
    for document in documents(text):
        if not isinstance(document, dict) or not isinstance(version := document.get("apiVersion"), str):
            raise InvalidMetadata("has a document without apiVersion", f"expected apiVersion: {_EXPECTED}")
        if version in VERSIONS:
            return document
        versions.append(version)
    raise InvalidMetadata(f"is of {', '.join(versions) or 'no version'}", f"expected a document of {_EXPECTED}")


def encode(document: dict[str, Any]) -> str:
    """Return a file with the document, which is one without apiVersion, in each version."""
    return "".join(json.dumps({"apiVersion": version, **document}) + "\n" for version in VERSIONS)


def documents(text: str) -> Iterator[Any]:
    """Return the documents of a file. InvalidMetadata, after those before it, for what is no JSON."""
    text = text.rstrip()
    end = 0
    try:
        while end < len(text):
            start = len(text) - len(text[end:].lstrip())
            document, end = json.JSONDecoder().raw_decode(text, start)
            yield document
    except (ValueError, RecursionError) as error:
        raise InvalidMetadata(f"is not JSON: {error}") from error


def _objects(parent: dict[str, Any], name: str) -> list[dict[str, Any]]:
    objects = parent.get(name) or []
    if not (isinstance(objects, list) and all(isinstance(each, dict) for each in objects)):
        raise InvalidMetadata(f"{name} is no list of objects", "expected DRA's device metadata")
    return objects


def _string(attributes: Any, name: str) -> str | None:
    """Return the value of {"name": {"string": "value"}}; None if it is missing, empty or of another type."""
    match attributes.get(name) if isinstance(attributes, dict) else None:
        case {"string": str(text)} if text:
            return text
        case _:
            return None
