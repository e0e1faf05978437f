"""The cluster's objects from a file or standard input, or from the inventories of its nodes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher.choosing.cluster import Cluster, Holder, Node, PublishedDevice, PublishedID, by_domain, cluster_of
from launcher.choosing.nodes import amounts_of
from pci import slices as words
from program.document import JSONObject, NotYAML, decoded, read_documents
from program.errors import UserError
from program.input import STDIN, input_name, read_input_bytes

#: 5,000 nodes of 8 cards are 60 MB as kubectl prints them.
_LARGEST = 1 << 30
_MOST_VALUES = 20_000_000
_EXPECTED = "expected what `kubectl get nodes,pods,resourceslices,resourceclaims,deviceclasses -A -o json` prints"
_INVENTORY = "expected what `gpu-plugin inventory --json` prints"


def read_cluster(path: Path) -> Cluster:
    """Read a cluster from a file, standard input (`-`), or a directory of inventories; UserError on failure."""
    if path != STDIN and path.is_dir():
        return _of_inventories(path)
    file = input_name(path)
    return cluster_of(_objects(_documents(_text(path), file), file))


def _text(path: Path) -> str:
    try:
        return decoded(read_input_bytes(path, _LARGEST, _EXPECTED))
    except NotYAML as error:
        raise UserError(f"{input_name(path)}{error.place}", error.wrong, error.fix or _EXPECTED) from error


def _documents(text: str, file: str) -> list[Any]:
    """Return the documents of a text. JSON is YAML too, but the JSON reader is twenty times as fast."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            return [json.loads(text)]
        except (ValueError, RecursionError):
            pass  # flow style, or several: PyYAML says what is wrong with it
    try:
        return [document.value for document in read_documents(text, _MOST_VALUES)]
    except NotYAML as error:
        raise UserError(f"{file}{error.place}", error.wrong, error.fix or _EXPECTED) from error


def _objects(documents: list[Any], file: str) -> Iterator[JSONObject]:
    if not documents:
        raise UserError(file, "is empty", _EXPECTED)
    for document in documents:
        items = document.get("items") if isinstance(document, dict) else None
        for item in items if isinstance(items, list) else [document]:
            if not isinstance(item, dict):
                raise UserError(file, f"has {type(item).__name__} where an object was expected", _EXPECTED)
            yield item


def _of_inventories(directory: Path) -> Cluster:
    """Read the nodes from the files NODE.json of a directory, with the holders of devices that the kubelet named."""
    nodes: list[Node] = []
    taken: dict[PublishedID, Holder] = {}
    paths = sorted(path for path in directory.iterdir() if path.suffix == ".json")
    if not paths:
        raise UserError(directory, "has no NODE.json", _INVENTORY)
    for path in paths:
        devices = []
        for each in _listed(path):
            device = _of_inventory(path, each)
            devices.append(device)
            if isinstance(pod := each.get("inUseBy"), str):
                taken[device.id] = Holder(None, (pod,))
        nodes.append(Node(path.stem, tuple(devices)))
    return Cluster(nodes=tuple(nodes), taken=taken)


def _listed(path: Path) -> list[JSONObject]:
    match _documents(_text(path), str(path)):
        case [{"devices": list(devices)}] if all(isinstance(device, dict) for device in devices):
            return devices
        case _:
            raise UserError(path, "has no list of devices", _INVENTORY)


def _of_inventory(path: Path, each: JSONObject) -> PublishedDevice:
    """Return an inventory's device as it is in the node's slices; `cannot` says why it is withheld or unhealthy."""
    match each:
        case {"id": str(id_), "attributes": dict(attributes)}:
            pass
        case _:
            raise UserError(path, "has a device without id or attributes", f"{_INVENTORY}, of this version")
    for name, value in attributes.items():
        if not isinstance(value, str | int):
            raise UserError(path, f"{id_}: the attribute {name} has no value", _INVENTORY)
    known: dict[str, dict[str, Any]] = by_domain(attributes, words.DRIVER)
    ours = known[words.DRIVER]
    if words.UUID not in ours and isinstance(device := ours.get(words.DEVICE), str):
        ours[words.UUID] = words.place_uuid(path.stem, id_, device)
    match each.get("reason"):
        case None:
            reason = None
        case {"wrong": str(wrong), "fix": str(fix)}:
            reason = f"{'unhealthy' if each.get('listed') else 'not offered'}: {wrong}{'; ' if fix else ''}{fix}"
        case _:
            raise UserError(path, f"{id_}: its reason is no finding", f"{_INVENTORY}, of this version")
    return PublishedDevice(
        id=PublishedID(words.DRIVER, path.stem, id_),
        attributes=known,
        # Inventories of older versions have none.
        capacity=by_domain(amounts_of(each, "capacity", {"kind": path, "metadata": {"name": id_}}), words.DRIVER),
        cannot=reason,
    )
