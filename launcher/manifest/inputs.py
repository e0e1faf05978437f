"""A user's input with VMs: a file or standard input, with any number of documents and Lists in it.

Read from it are VMs, and the instance types and preferences that they may name (instancetype.kubevirt.io). Objects of
other kinds are passed over but kept, so that a caller can report them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from launcher.vm.volumes.manifest import is_block
from program.document import JSONObject, Nodes, NotYAML, composed, decoded, line_of, read_documents
from program.errors import UserError
from program.input import input_name, read_input_bytes
from program.problem import excerpt, summary

VM_KINDS = ("VirtualMachine", "VirtualMachineInstance", "VirtualMachinePool", "VirtualMachineInstanceReplicaSet")
TYPE_KINDS = (
    "VirtualMachineInstancetype",
    "VirtualMachineClusterInstancetype",
    "VirtualMachinePreference",
    "VirtualMachineClusterPreference",
)
_TYPES_GROUP = "instancetype.kubevirt.io"
_VM_GROUPS = ("kubevirt.io", "pool.kubevirt.io")
_LARGEST = 3 << 20  # twice what etcd takes of one object
_KIND = "expected a VirtualMachine or VirtualMachineInstance"


class TypeObject(NamedTuple):
    """An instance type or a preference as written, and the file that it is in."""

    value: JSONObject
    file: str

    @property
    def kind_and_name(self) -> str:
        return f"{self.value['kind']} {names_of(self.value)[1]}"

    @property
    def subject(self) -> str:
        """Return the text before a path of the object in errors: its file, kind and name."""
        return f"{self.file}: {self.kind_and_name}: "


@dataclass(frozen=True, kw_only=True)
class ManifestFile:
    """A file's objects, in their order. `file` is its name in errors, and `text` its whole content.

    `others`: the objects that are passed over. `block`: their claims that are block devices. `alone`: whether the file
    has one document, which is a VM. `places`: for each object, by its id(), the line where its document begins, and its
    path there.
    """

    file: str
    text: str
    vms: tuple[JSONObject, ...] = ()
    types: tuple[TypeObject, ...] = ()
    others: tuple[JSONObject, ...] = ()
    block: frozenset[str] = frozenset()
    alone: bool = False
    places: Mapping[int, tuple[int, str]] = field(default_factory=dict)

    def at(self, item: JSONObject, path: str) -> str:
        """Return the file and the line of the field at a path of an object, in editors' form: vm.yaml:12."""
        begin, above = self.places[id(item)]
        return f"{self.file}:{line_of(self._documents, above + path, begin)}"

    @cached_property
    def _documents(self) -> Nodes:
        """Return the composed documents; composed only for the first error, since a start has no time for it."""
        return composed(self.text)


def read_input(path: Path) -> ManifestFile:
    """Read the objects of a file, or of standard input for `-`.

    UserError for a file that cannot be read or is larger than any VM's, and as for input_in.
    """
    expected = f"{_KIND}, of at most {_LARGEST >> 20} MiB"
    return input_in(read_input_bytes(path, _LARGEST, expected), input_name(path))


def input_in(content: bytes, file: str) -> ManifestFile:
    """Return the objects in a file's content; UserError if it is not YAML, or has anything but objects in it."""
    try:
        text = decoded(content)
        if re.match(r"\s*<[?!\w]", text):
            raise UserError(f"{file}:1", "is XML", f"{_KIND}: gpu-launcher makes libvirt's XML of that")
        documents = read_documents(text)
    except NotYAML as error:
        raise UserError(f"{file}{error.place}", error.wrong, error.fix or f"{_KIND}, as YAML or JSON") from error
    if not documents:
        raise UserError(file, "has only comments" if text.strip() else "is empty", _KIND)
    objects: list[JSONObject] = []
    places: dict[int, tuple[int, str]] = {}
    for value, line in documents:
        if not isinstance(value, dict):
            raise UserError(f"{file}:{line}", f"found {excerpt(value)}", _KIND)
        for above, item in _items(value, file, line):
            objects.append(item)
            places[id(item)] = (line, above)
    vms = _vms(objects)
    types = [item for item in objects if item.get("kind") in TYPE_KINDS and _group(item) in (None, _TYPES_GROUP)]
    ours = {id(item) for item in (*vms, *types)}
    return ManifestFile(
        file=file,
        text=text,
        vms=vms,
        types=tuple(TypeObject(item, file) for item in types),
        others=tuple(item for item in objects if id(item) not in ours),
        block=frozenset(name for item in objects if (name := _block_claim(item)) is not None),
        alone=len(documents) == 1 and bool(vms) and vms[0] is documents[0].value,
        places=places,
    )


def read_vms(path: Path) -> ManifestFile:
    """Read an input as read_input does; UserError also as for require_vms."""
    return require_vms(read_input(path))


def require_vms(file: ManifestFile) -> ManifestFile:
    """Return the input; UserError, which names its objects, for one without a VM."""
    if file.vms:
        return file
    others = (*file.others, *(item.value for item in file.types))
    if len(others) == 1:
        kind = others[0].get("kind")
        wrong = "is missing" if kind is None else f"found {_bare(kind)!r}"
        raise UserError(f"{file.at(others[0], 'kind')}: kind", wrong, _KIND)
    raise UserError(file.file, f"has no VM, but {summary(map(kind_and_name, others))}", f"{_KIND} as well")


def names_of(vm: JSONObject) -> tuple[str | None, str | None]:
    """Return namespace and name; None for a value that is missing, or no text.

    Without a name it is the generateName, as for launcher.vm.spec.Named.
    """
    metadata = vm.get("metadata")
    texts = {key: text for key, text in metadata.items() if isinstance(text, str)} if isinstance(metadata, dict) else {}
    return texts.get("namespace") or None, texts.get("name") or texts.get("generateName", "").rstrip("-.") or None


def kind_and_name(item: JSONObject) -> str:
    """Return an object's kind and name, as in `Service web`."""
    words = (item.get("kind"), names_of(item)[1])
    return " ".join(map(_bare, (word for word in words if word is not None))) or "None"


def _bare(word: object) -> str:
    return excerpt(word).strip("'")


def _vms(objects: list[JSONObject]) -> tuple[JSONObject, ...]:
    """Return the VMs; of a VirtualMachine and the instance made from it, as in a dump of both, only the VirtualMachine.

    An object of another API group counts as a VM only if there are no others: its group may be misspelt.
    """
    vms = [item for item in objects if item.get("kind") in VM_KINDS]
    ours = [item for item in vms if _group(item) in (None, *_VM_GROUPS)] or vms
    makers = [names_of(item) for item in ours if item["kind"] == VM_KINDS[0]]
    return tuple(item for item in ours if item["kind"] != VM_KINDS[1] or names_of(item) not in makers)


def _block_claim(item: JSONObject) -> str | None:
    """Return the name of a claim or a DataVolume for a block device; None for any other object."""
    is_claim = item.get("kind") in ("PersistentVolumeClaim", "DataVolume")
    return names_of(item)[1] if is_claim and is_block(item.get("spec")) else None


def _group(item: JSONObject) -> str | None:
    version = item.get("apiVersion")
    return version.rpartition("/")[0] if isinstance(version, str) else None


def _items(value: JSONObject, file: str, line: int) -> Iterator[tuple[str, JSONObject]]:
    """Yield an object, or a List's items, each after its path. Items of a List of one kind may leave out the apiVersion
    and kind that the List has."""
    kind, items = value.get("kind"), value.get("items")
    if not (isinstance(kind, str) and kind.endswith("List") and isinstance(items, list)):
        yield "", value
        return
    for index, item in enumerate(items):
        if not isinstance(item, dict) or item is value:
            raise UserError(
                f"{file}:{line}: items[{index}]", f"found {excerpt(item)}", "expected an object, with a kind"
            )
        if kind != "List" and "kind" not in item:
            item = {"apiVersion": value.get("apiVersion"), "kind": kind.removesuffix("List"), **item}
        yield f"items[{index}].", item
