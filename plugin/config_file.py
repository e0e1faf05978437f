"""The config as a file: YAML in, Config out, or one line that says where it is wrong; and its JSON schema.

PyYAML and pydantic are imported with the first file: most nodes have none.
"""

import difflib
import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugin.cards.config import Config, Fabric, Rule
from program.errors import Nonsense, UserError

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

_READ = "gpu-plugin config schema prints all that a config may say"


def config_of(path: Path | None) -> Config:
    """Return the config of a file, or the config without a file."""
    return Config() if path is None else read_config(path)


def read_config(path: Path) -> Config:
    """Read a config file. UserError, in one line, for a file that is missing, is not YAML or asks for nonsense."""
    from pydantic import ValidationError

    from program.document import NotYAML, read_document

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        wrong = error.strerror if isinstance(error, OSError) else str(error)
        raise UserError(path, f"cannot read the config: {wrong}", "expected a file of text, in YAML") from error
    if not text:
        # What an editor or a full disk leaves half-way must not put every GPU on offer.
        raise UserError(path, "is empty", "a config that asks for nothing is a comment, or {}")
    try:
        document = read_document(text)
    except NotYAML as error:
        raise UserError(path, f"is not YAML: {error}", _READ) from error
    try:
        return _adapter().validate_python({} if document is None else document)
    except ValidationError as error:
        raise UserError(path, *_first(error)) from error


def schema() -> dict[str, Any]:
    """Return the JSON schema of the file, for editors."""
    return _adapter().json_schema()


def written_out(config: Config) -> Any:
    """Return the config as a file that leaves out no word."""
    return _adapter().dump_python(config, mode="json")


def _adapter() -> "TypeAdapter[Config]":
    from pydantic import TypeAdapter

    return TypeAdapter(Config)


def _first(error: "ValidationError") -> tuple[str, str]:
    """Return what is wrong by the first error, and the fix."""
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
        values = re.findall("'([^']*)'", first["ctx"]["expected"])  # 'a', 'b' or 'c'
        return f"{where}: {first['msg']}", _meant(str(first["input"]), values)
    return f"{where}: {first['msg']}", _READ


def _words(location: tuple[int | str, ...]) -> list[str]:
    """Return the words that may stand at this location: of a rule, of the Fabric Manager, or of the config."""
    within = Config if len(location) == 1 else Fabric if location[0] == "fabric" else Rule
    return [field.name for field in fields(within)]


def _meant(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
