"""From a file to a manifest, or to what is wrong with it, by the path of a field."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from launcher.manifest.objects import Below, Object, object_in
from launcher.manifest.scalars import shown
from launcher.manifest.spec import VirtualMachine, VirtualMachineInstance
from program.document import NotYAML, read_document
from program.errors import Nonsense, UserError

_KINDS: Mapping[str, type[VirtualMachine] | type[VirtualMachineInstance]] = {
    "VirtualMachine": VirtualMachine,
    "VirtualMachineInstance": VirtualMachineInstance,
}


_USUAL = 1 << 16  # read alone at first: room for the largest has to be got from the kernel
_LARGEST = 3 << 20  # twice what etcd takes of one object
_LONGEST = 500  # characters of a path, of what is wrong there, of its fix
_EXPECTED = "Input should be "  # what most of pydantic's messages begin with
_KIND = "expected a VirtualMachine or VirtualMachineInstance"
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

    UserError, by the file and the field's path, for a file that is missing or not YAML and for a manifest that says
    something the launcher does not convert.
    """
    return read_given(path).instance


def read_given(path: Path) -> Given:
    """Read a manifest with all that a VirtualMachine says of itself, and its text; UserError as for read_manifest."""
    text, document = _read_yaml(path)
    if not isinstance(document, dict):
        raise UserError(path, f"found {shown(document)}", _KIND)
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise UserError(f"{path}: kind", f"found {shown(kind)}", _KIND)
    try:
        manifest = _KINDS[kind].model_validate(document)
    except ValidationError as error:
        where, wrong, fix = _problem(_KINDS[kind], error)
        raise UserError(f"{path}: {where}", wrong, fix) from error
    return Given(text, manifest, document["metadata"].get("namespace") or None)


def _read_yaml(path: Path) -> tuple[str, Any]:
    """Return the file's text, and the one document in it."""
    try:
        with path.open("rb") as file:
            content = file.read(_USUAL)
            if len(content) == _USUAL:
                content += file.read(_LARGEST)
        if len(content) > _LARGEST:
            raise UserError(path, f"has more than {_LARGEST} bytes", "expected a manifest of at most as many")
        text = content.decode()
        return text, read_document(text)
    except OSError as error:
        raise UserError(
            path, f"cannot read the manifest: {error.strerror}", f"{_KIND}, in a file that can be read"
        ) from error
    except (UnicodeDecodeError, NotYAML) as error:
        raise UserError(path, f"is not YAML: {error}", f"{_KIND}, as one document of YAML") from error


def _problem(kind: type[Object], error: ValidationError) -> tuple[str, str, str]:
    """Return `spec.domain.devices.gpus[0].name`, what is wrong with it, and the fix with how many more errors there
    are."""
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
    wrong, fix = _unknown(kind, parts) if unknown else _wrong(first)
    others = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return _short(where), _short(wrong), f"{_short(fix)}{others}"


def _short(text: str) -> str:
    """Return the beginning of the text and its end: whatever was quoted, a line stays one that people read."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 100]} ... {text[-100:]}"


def _wrong(error: Mapping[str, Any]) -> tuple[str, str]:
    """Return what is wrong with a field, and the fix: its check's, or in words of ours what pydantic says."""
    if isinstance(nonsense := error.get("ctx", {}).get("error"), Nonsense):
        return nonsense.wrong, nonsense.fix
    value, message = shown(error["input"]), error["msg"]
    match error["type"]:
        case "missing":
            return "is missing", "add it"
        case "model_type" | "dict_type":
            return f"found {value}", "expected a mapping"
        case "tuple_type":
            return f"found {value}", "expected a list"
        case _ if message.startswith(_EXPECTED):
            expected = message.removeprefix(_EXPECTED)
            return f"found {value}", f"expected {'a number ' * expected.startswith(('less', 'greater'))}{expected}"
        case _:
            return f"{message[0].lower()}{message[1:]}, found {value}", "gpu-launcher schema prints what it may be"


def _unknown(kind: type[Object], location: Sequence[int | str]) -> tuple[str, str]:
    """Return what is wrong with the field at this location, and what to write instead."""
    *way, name = location
    known = list(_object_at(kind, way).model_fields)
    near = difflib.get_close_matches(str(name), known, n=1)
    fix = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known) or 'nothing'}"
    return "not a field that gpu-launcher knows", fix


def _object_at(kind: type[Object], location: Sequence[int | str]) -> type[Object]:
    for part in location:
        if isinstance(part, str):  # and no index of a list
            below = object_in(kind.model_fields[part].annotation)
            assert below is not None, "there is an object in this field, since its fields are checked"
            kind = below
    return kind
