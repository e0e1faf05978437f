"""What a user gives as a VM: a file or standard input, with any number of documents and Lists in it.

Of the objects in it, VMs are ours, and so are the instance types and preferences that they may name
(instancetype.kubevirt.io). Objects of other kinds are passed over, and named, so that somebody can say so.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from launcher.manifest.quotation import shown
from launcher.manifest.volumes import is_block
from program.document import JSONObject, NotYAML, read_documents
from program.errors import UserError

VM_KINDS = ("VirtualMachine", "VirtualMachineInstance", "VirtualMachinePool", "VirtualMachineInstanceReplicaSet")
TYPE_KINDS = (
    "VirtualMachineInstancetype",
    "VirtualMachineClusterInstancetype",
    "VirtualMachinePreference",
    "VirtualMachineClusterPreference",
)
#: The path that stands for standard input.
STDIN = Path("-")

_TYPES_GROUP = "instancetype.kubevirt.io"
_VM_GROUPS = ("kubevirt.io", "pool.kubevirt.io")
_USUAL = 1 << 16  # read alone at first: room for the largest has to be got from the kernel
_LARGEST = 3 << 20  # twice what etcd takes of one object
_KIND = "expected a VirtualMachine or VirtualMachineInstance"


class TypeObject(NamedTuple):
    """An instance type or a preference as it was written, and the file that it is in."""

    value: JSONObject
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A file's objects, in their order. `file` is what an error calls it, and `text` all that is in it.

    `others`: what is passed over. `block`: the claims among it that are block devices. `alone`:
    whether the file has one document, which is a VM.
    """

    file: str
    text: str
    vms: tuple[JSONObject, ...] = ()
    types: tuple[TypeObject, ...] = ()
    others: tuple[JSONObject, ...] = ()
    block: frozenset[str] = frozenset()
    alone: bool = False


def read_input(path: Path) -> Input:
    """Read the objects of a file, or of standard input for `-`.

    UserError for a file that cannot be read or holds more than any VM does, and as for input_in.
    """
    file = "standard input" if path == STDIN else str(path)
    return input_in(_read_text(path, file), file)


def input_in(text: str, file: str) -> Input:
    """Return the objects in the text of a file; UserError for a text that is not YAML, or has something else in it than
    objects."""
    try:
        documents = read_documents(text)
    except NotYAML as error:
        raise UserError(file, f"is not YAML: {error}", f"{_KIND}, as YAML or JSON") from error
    if not documents:
        raise UserError(file, "found None", _KIND)
    objects: list[JSONObject] = []
    for document in documents:
        if not isinstance(document.value, dict):
            subject = f"{file}: line {document.line}" if len(documents) > 1 else file
            raise UserError(subject, f"found {shown(document.value)}", _KIND)
        objects += _items(document.value, f"{file}: line {document.line}")
    vms = _vms(objects)
    types = [item for item in objects if item.get("kind") in TYPE_KINDS and _group(item) in (None, _TYPES_GROUP)]
    ours = {id(item) for item in (*vms, *types)}
    return Input(
        file=file,
        text=text,
        vms=vms,
        types=tuple(TypeObject(item, file) for item in types),
        others=tuple(item for item in objects if id(item) not in ours),
        block=frozenset(name for item in objects if (name := _block_claim(item)) is not None),
        alone=len(documents) == 1 and bool(vms) and vms[0] is documents[0].value,
    )


def read_vms(path: Path) -> Input:
    """Read an input as read_input does; UserError also as for having_vms."""
    return having_vms(read_input(path))


def having_vms(given: Input) -> Input:
    """Return the input; UserError for one without a VM, which says what it has instead."""
    if given.vms:
        return given
    others = (*given.others, *(item.value for item in given.types))
    if len(others) == 1:
        kind = others[0].get("kind")
        raise UserError(f"{given.file}: kind", f"found {None if kind is None else repr(_bare(kind))}", _KIND)
    raise UserError(given.file, f"has no VM, but {listed(map(called, others))}", f"{_KIND} as well")


def names_of(vm: JSONObject) -> tuple[str | None, str | None]:
    """Return namespace and name; None for what is not written, or is no text.

    Without a name it is generateName, as for launcher.manifest.spec.Named.
    """
    metadata = vm.get("metadata")
    texts = {key: text for key, text in metadata.items() if isinstance(text, str)} if isinstance(metadata, dict) else {}
    return texts.get("namespace") or None, texts.get("name") or texts.get("generateName", "").rstrip("-.") or None


def called(item: JSONObject) -> str:
    """Return an object's kind and name, as `Service web`."""
    words = (item.get("kind"), names_of(item)[1])
    return " ".join(map(_bare, (word for word in words if word is not None))) or "None"


def _bare(word: object) -> str:
    return shown(word).strip("'")


def listed(names: Iterable[str]) -> str:
    """Return names for a line: the first few, and how many more there are."""
    most = 6
    first = list(names)
    more = f" and {len(first) - most} more" if len(first) > most else ""
    return ", ".join(first[:most]) + more


def _vms(objects: list[JSONObject]) -> tuple[JSONObject, ...]:
    """Return the VMs; of a VirtualMachine and the instance that it has made, as in a dump of both, the former.

    One of another API group is one only where there is no other: its group may be misspelt.
    """
    vms = [found for found in objects if found.get("kind") in VM_KINDS]
    ours = [found for found in vms if _group(found) in (None, *_VM_GROUPS)] or vms
    makers = [names_of(found) for found in ours if found["kind"] == VM_KINDS[0]]
    return tuple(found for found in ours if found["kind"] != VM_KINDS[1] or names_of(found) not in makers)


def _block_claim(item: JSONObject) -> str | None:
    """Return the name of a claim, or of a DataVolume, that says it is a block device; None for anything else."""
    is_claim = item.get("kind") in ("PersistentVolumeClaim", "DataVolume")
    return names_of(item)[1] if is_claim and is_block(item.get("spec")) else None


def _group(item: JSONObject) -> str | None:
    version = item.get("apiVersion")
    return version.rpartition("/")[0] if isinstance(version, str) else None


def _items(value: JSONObject, subject: str) -> Iterator[JSONObject]:
    """Yield an object, or for a List its items. Items of a List of one kind may leave out what the List says."""
    kind, items = value.get("kind"), value.get("items")
    if not (isinstance(kind, str) and kind.endswith("List") and isinstance(items, list)):
        yield value
        return
    for index, item in enumerate(items):
        if not isinstance(item, dict) or item is value:
            raise UserError(f"{subject}: items[{index}]", f"found {shown(item)}", "expected an object, with a kind")
        if kind != "List" and "kind" not in item:
            item = {"apiVersion": value.get("apiVersion"), "kind": kind.removesuffix("List"), **item}
        yield item


def _read_text(path: Path, file: str) -> str:
    try:
        if path == STDIN and sys.stdin is None:
            raise UserError(file, "is closed", "give the manifest on it, or name a file")
        content = sys.stdin.buffer.read(_LARGEST + 1) if path == STDIN else _read_file(path)
        if len(content) > _LARGEST:
            raise UserError(file, f"has more than {_LARGEST} bytes", "expected as many at most: of a dump, one VM")
        return content.decode()
    except OSError as error:
        raise UserError(
            file, f"cannot read the manifest: {error.strerror}", f"{_KIND}, in a file that can be read"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(file, f"is not YAML: {error}", f"{_KIND}, as YAML or JSON") from error


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(_USUAL)
        return content + file.read(_LARGEST) if len(content) == _USUAL else content
