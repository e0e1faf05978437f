"""From a file to a manifest, or to one line that says what is wrong with it."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic_core import ErrorDetails, SchemaValidator, ValidationError

from launcher.errors import UserError
from launcher.manifest.scalars import shown
from launcher.manifest.spec import VirtualMachine, VirtualMachineInstance
from launcher.model import Below, validator
from program.document import read_document

_KINDS: Mapping[str, type[VirtualMachine] | type[VirtualMachineInstance]] = {
    "VirtualMachine": VirtualMachine,
    "VirtualMachineInstance": VirtualMachineInstance,
}


_USUAL = 1 << 16  # read alone at first: room for the largest has to be got from the kernel
_LARGEST = 3 << 20  # twice what etcd takes of one object
_LONGEST = 1000  # characters of an error


class Given(NamedTuple):
    """A manifest as it was given: its text and what that says. `namespace` is None where it says none."""

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
    """The same, with all that a VirtualMachine says of itself, and the text."""
    text, document = _read_yaml(path)
    if not isinstance(document, dict):
        raise UserError(f"{path}: expected a VirtualMachine or VirtualMachineInstance, found {shown(document)}")
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise UserError(f"{path}: kind: expected VirtualMachine or VirtualMachineInstance, found {shown(kind)}")
    try:
        manifest = _validator(kind).validate_python(document)
    except ValidationError as error:
        first, *more = error.errors(include_url=False)
        others = f" (and {len(more)} more)" if more else ""
        raise UserError(f"{path}: {_line(first)}{others}") from error
    return Given(text, manifest, document["metadata"].get("namespace") or None)


@cache
def _validator(kind: str) -> SchemaValidator:
    return validator(_KINDS[kind])


def _read_yaml(path: Path) -> tuple[str, Any]:
    """The file's text, and the one document in it."""
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
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
        # The last three are PyYAML's for values that are not of their tag (!!int "", !!bool maybe, 2001-99-99).
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        said = [text for text in (getattr(error, "context", None), getattr(error, "problem", None)) if text]
        problem = ", ".join(said) or " ".join(str(error).split())
        raise UserError(f"{path}: is not YAML: {where}{problem}") from error


def _line(error: ErrorDetails) -> str:
    """`spec.domain.devices.gpus[0].name: what is wrong with it`."""
    parts = list(error["loc"])
    if error["type"] == "unknown_field":
        parts.append(error["ctx"]["field"])
    elif isinstance(below := error.get("ctx", {}).get("error"), Below):
        parts.append(below.path)
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
    match error["type"]:
        case "missing":
            problem = "is missing"
        case "value_error" | "unknown_field":
            problem = error["msg"].removeprefix("Value error, ")
        case "not_a_mapping" | "dict_type":
            problem = f"expected a mapping, found {shown(error['input'])}"
        case _:
            message = error["msg"]
            problem = f"{message[0].lower()}{message[1:]}, found {shown(error['input'])}"
    text = f"{where}: {problem}"
    # Whatever was quoted, a line stays one that people read: its beginning and what to do about it.
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 200]} ... {text[-200:]}"
