"""The config file: reads YAML as a Config, or says in one line where it is wrong; and its JSON schema."""

import difflib
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from plugin.cards.config import Config, Fabric, Rule
from program.document import NotYAML, read_document
from program.errors import Nonsense, UserError

_READ = "gpu-plugin config schema prints all that a config may say"


def read_config(path: Path) -> Config:
    """Read a config file. UserError if it is missing, is not YAML or makes no sense."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        wrong = error.strerror if isinstance(error, OSError) else str(error)
        raise UserError(path, f"cannot read the config: {wrong}", "expected a file of text, in YAML") from error
    if not text:
        # A file that an editor or a full disk left half-written must not put every GPU on offer.
        raise UserError(path, "is empty", "a config that asks for nothing is a comment, or {}")
    try:
        document = read_document(text)
    except NotYAML as error:
        raise UserError(path, f"is not YAML: {error}", _READ) from error
    try:
        return TypeAdapter(Config).validate_python({} if document is None else document)
    except ValidationError as error:
        raise UserError(path, *_first(error)) from error


def schema() -> dict[str, Any]:
    """Return the JSON schema of the file, for editors."""
    return TypeAdapter(Config).json_schema()


def written_out(config: Config) -> Any:
    """Return the config as a document with every field, also those that the file left out."""
    return TypeAdapter(Config).dump_python(config, mode="json")


def _first(error: ValidationError) -> tuple[str, str]:
    """Return what is wrong with the first of the wrong fields, and the fix."""
    first = error.errors()[0]
    # A selector is text or a list of texts, and pydantic reports both it tried.
    where = ".".join(str(part) for part in first["loc"] if part not in ("str", "tuple[str, ...]")) or "the file"
    if first["type"] == "string_type":
        # YAML reads 0300 and 8086 as numbers.
        try:
            value = repr(first["input"])[:80]
        except ValueError:  # a number of thousands of digits
            value = "a huge number"
        return f"{where}: found {value}", "expected text, in quotes"
    if isinstance(nonsense := first.get("ctx", {}).get("error"), Nonsense):
        return f"{where}: {nonsense.wrong}", nonsense.fix
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"{where}: is no word of the config", _meant(str(first["loc"][-1]), _words(first["loc"]))
    if first["type"] == "enum":
        values = re.findall("'([^']*)'", first["ctx"]["expected"])  # as pydantic writes them: 'a', 'b' or 'c'
        return f"{where}: {first['msg']}", _meant(str(first["input"]), values)
    return f"{where}: {first['msg']}", _READ


def _words(location: tuple[int | str, ...]) -> list[str]:
    """Return the fields that may stand in this place: of a rule, of the Fabric Manager, or of the config."""
    within = Config if len(location) == 1 else Fabric if location[0] == "fabric" else Rule
    return [field.name for field in fields(within)]


def _meant(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
