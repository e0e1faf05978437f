"""The config as a file: YAML in, Config out, or one line that says where it is wrong; and its JSON schema."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from plugin.config import Config
from plugin.errors import UserError


class _Loader(yaml.SafeLoader):
    """Refuses a key that is there twice: a second `offer:` would take the place of the first, and of its rules."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


def read_config(path: Path) -> Config:
    """Read a config file. UserError, in one line, for a file that is missing, is not YAML or asks for nonsense."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot read the config: {error}") from error
    if not text:
        # What an editor or a full disk leaves half-way must not put every GPU on offer.
        raise UserError(f"{path}: is empty; a config that asks for nothing is a comment, or {{}}")
    try:
        document = yaml.load(text, Loader=_Loader)  # noqa: S506 (a SafeLoader)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        # All but the first are PyYAML's for values that are not of their tag, and for absurd nesting.
        raise UserError(f"{path}: is not YAML: {' '.join(str(error).split())}") from error
    try:
        return TypeAdapter(Config).validate_python({} if document is None else document)
    except ValidationError as error:
        raise UserError(f"{path}: {_first(error)}") from error


def schema() -> dict[str, Any]:
    """The JSON schema of the file, for editors."""
    return TypeAdapter(Config).json_schema()


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    # A selector is text or a list of texts, and pydantic reports both it tried.
    where = ".".join(str(part) for part in first["loc"] if part not in ("str", "tuple[str, ...]")) or "the file"
    if first["type"] == "string_type":
        # YAML 1.1 reads 10e1 as a number, and 1234:1111 as one to base 60.
        try:
            found = repr(first["input"])[:80]
        except ValueError:  # a number of thousands of digits
            found = "a huge number"
        return f"{where}: found {found}; expected text, in quotes"
    return f"{where}: {first['msg'].removeprefix('Value error, ')}"
