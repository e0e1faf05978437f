"""The config as a file: YAML in, Config out, or one line that says where it is wrong; and its JSON schema."""

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from plugin.config import Config
from plugin.errors import UserError
from program.document import NotYAML, read_document


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
        document = read_document(text)
    except NotYAML as error:
        raise UserError(f"{path}: is not YAML: {error}") from error
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
        # YAML reads 0300 and 8086 as numbers.
        try:
            found = repr(first["input"])[:80]
        except ValueError:  # a number of thousands of digits
            found = "a huge number"
        return f"{where}: found {found}; expected text, in quotes"
    return f"{where}: {first['msg'].removeprefix('Value error, ')}"
