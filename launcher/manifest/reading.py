"""From a file to a manifest, or to one line that says what is wrong with it."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from launcher.errors import UserError
from launcher.manifest.objects import Below, Object, object_in
from launcher.manifest.scalars import shown
from launcher.manifest.spec import VirtualMachine, VirtualMachineInstance
from program.document import NotYAML, read_document

_KINDS: Mapping[str, type[VirtualMachine] | type[VirtualMachineInstance]] = {
    "VirtualMachine": VirtualMachine,
    "VirtualMachineInstance": VirtualMachineInstance,
}


_USUAL = 1 << 16  # read alone at first: room for the largest has to be got from the kernel
_LARGEST = 3 << 20  # twice what etcd takes of one object
_LONGEST = 1000  # characters of an error
_UNKNOWN = ("extra_forbidden", "invalid_key")  # pydantic's errors for a field that an object does not have


class Given(NamedTuple):
    """A manifest: its text, and what that says. `namespace` is None if it says none."""

    text: str
    manifest: VirtualMachine | VirtualMachineInstance
    namespace: str | None

    @property
    def instance(self) -> VirtualMachineInstance:
        return self.manifest.instance() if isinstance(self.manifest, VirtualMachine) else self.manifest


def read_manifest(path: Path) -> VirtualMachineInstance:
    """Read a VirtualMachineInstance, or a VirtualMachine as the instance it would make.

    UserError, in one line that begins with the file and the field's path, for a file that is missing or not YAML and
    for a manifest that says something the launcher does not convert.
    """
    return read_given(path).instance


def read_given(path: Path) -> Given:
    """Read a manifest with all that a VirtualMachine says of itself, and its text; UserError as for read_manifest."""
    text, document = _read_yaml(path)
    if not isinstance(document, dict):
        raise UserError(f"{path}: expected a VirtualMachine or VirtualMachineInstance, found {shown(document)}")
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise UserError(f"{path}: kind: expected VirtualMachine or VirtualMachineInstance, found {shown(kind)}")
    try:
        manifest = _KINDS[kind].model_validate(document)
    except ValidationError as error:
        raise UserError(f"{path}: {_line(_KINDS[kind], error)}") from error
    return Given(text, manifest, document["metadata"].get("namespace") or None)


def _read_yaml(path: Path) -> tuple[str, Any]:
    """Return the file's text, and the one document in it."""
    try:
        with path.open("rb") as file:
            content = file.read(_USUAL)
            if len(content) == _USUAL:
                content += file.read(_LARGEST)
        if len(content) > _LARGEST:
            raise UserError(f"{path}: expected a manifest of at most {_LARGEST} bytes, found more")
        text = content.decode()
        return text, read_document(text)
    except OSError as error:
        raise UserError(f"{path}: cannot read the manifest: {error.strerror}") from error
    except (UnicodeDecodeError, NotYAML) as error:
        raise UserError(f"{path}: is not YAML: {error}") from error


def _line(kind: type[Object], error: ValidationError) -> str:
    """Return `spec.domain.devices.gpus[0].name: what is wrong with it`, and how many more errors there are."""
    errors = error.errors(include_url=False)
    # Before it, a field that is not known of the same object, or of one around it: it may be why another is missing.
    objects = [errors[0]["loc"][:length] for length in range(len(errors[0]["loc"]))]
    unknown = [error for error in errors if error["type"] in _UNKNOWN and error["loc"][:-1] in objects]
    first = (unknown or errors)[0]
    parts = list(first["loc"])
    if first["type"] == "invalid_key":
        parts[-1] = str(first["input"])
    if isinstance(below := first.get("ctx", {}).get("error"), Below):
        parts.append(below.path)
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
    problem = _unknown(kind, parts) if unknown else _problem(first["type"], first["msg"], first["input"])
    others = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    text = f"{where}: {problem}{others}"
    # Whatever was quoted, a line stays one that people read: its beginning and what to do about it.
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 200]} ... {text[-200:]}"


def _problem(error: str, message: str, value: Any) -> str:
    match error:
        case "missing":
            return "is missing"
        case "value_error":
            return message.removeprefix("Value error, ")
        case "model_type" | "dict_type":
            return f"expected a mapping, found {shown(value)}"
        case "tuple_type":
            return f"expected a list, found {shown(value)}"
        case _:
            return f"{message[0].lower()}{message[1:]}, found {shown(value)}"


def _unknown(kind: type[Object], location: Sequence[int | str]) -> str:
    """Say what to write instead of the field at this location."""
    *way, name = location
    known = list(_object_at(kind, way).model_fields)
    if near := difflib.get_close_matches(str(name), known, n=1):
        return f"not a field that gpu-launcher knows; did you mean {near[0]}?"
    return f"not a field that gpu-launcher knows; known here: {', '.join(known) or 'nothing'}"


def _object_at(kind: type[Object], location: Sequence[int | str]) -> type[Object]:
    for part in location:
        if isinstance(part, str):  # and no index of a list
            below = object_in(kind.model_fields[part].annotation)
            assert below is not None, "there is an object in this field, since its fields are checked"
            kind = below
    return kind
