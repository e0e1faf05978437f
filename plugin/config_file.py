"""The config as a file: reads YAML to a Config, or to one line that says what is wrong and where; its JSON schema.

PyYAML and pydantic are imported with the first file: most nodes have none.
"""

import re
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugin.cards.config import SELECTORS, TEAM, Config, Fabric, Rule
from plugin.cards.names import NAME, PREFIX
from plugin.cards.vgpu_rules import VGPURule
from program.errors import Nonsense, UserError
from program.problem import Problem
from program.spelling import meant

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

_LARGEST = 1 << 20  # as a ConfigMap
_EXPECTED_FILE = f"expected a config in YAML, of at most {_LARGEST >> 20} MiB"
_READ = "gpu-plugin config schema prints all that a config may say"
#: Parts of pydantic's locations that are no names of fields.
_NO_FIELDS = ("str", "tuple[str, ...]", "[key]")
#: The fix, by the beginning of the kind of pydantic's error.
_EXPECTED = {
    "string": "expected text, in quotes",  # YAML reads 0300 and 8086 as numbers
    "tuple": "expected a list",
    "dict": "expected a mapping",
    "dataclass": "expected a mapping",
    "bool": "expected true or false",
    "int": "expected a number",
}


def config_of(path: Path | None) -> Config:
    """Return the config in a file, or the default one without a file."""
    return Config() if path is None else read_config(path)


def read_config(path: Path) -> Config:
    """Read a config file. UserError, in one line, for a file that is missing, is not YAML or makes no sense."""
    from pydantic import ValidationError

    from program.document import NotYAML, composed, line_of, read_document

    text = _text(path)
    if not text:
        # A file that an editor or a full disk left unfinished must not put every GPU on offer.
        raise UserError(path, "is empty", "a config that asks for nothing is a comment, or {}")
    try:
        document = read_document(text)
    except NotYAML as error:
        raise UserError(f"{path}{error.place}", error.wrong, error.fix or _READ) from error
    if not isinstance(document, dict | None):
        raise UserError(path, f"found {_shown(document)}", f"expected a mapping: {_READ}")
    try:
        return _adapter().validate_python({} if document is None else document)
    except ValidationError as error:
        where, fix = _first(error)
        raise UserError(f"{path}:{line_of(composed(text), where)}", where, fix) from error


def shadowed_in(path: Path, config: Config) -> list[Problem]:
    """Return a problem for each rule in a config's file that never counts, since an earlier one shadows it."""
    if not (shadowed := config.shadowed):
        return []
    from program.document import composed, line_of

    documents = composed(_text(path))
    return [
        Problem(
            f"{path}:{line_of(documents, f'offer.{later}')}",
            f"offer.{later}: never counts, as offer.{earlier} fits each device that it fits, and comes first",
            f"write it before offer.{earlier}, or leave it out",
        )
        for earlier, later in shadowed
    ]


def _text(path: Path) -> str:
    from program.document import NotYAML, decoded
    from program.input import read_input_bytes

    try:
        return decoded(read_input_bytes(path, _LARGEST, _EXPECTED_FILE))
    except NotYAML as error:
        raise UserError(f"{path}{error.place}", error.wrong, error.fix or _READ) from error


def schema() -> dict[str, Any]:
    """Return the JSON schema of the file, for editors and the chart; with the forms of IDs and of resources' names."""
    made = _adapter().json_schema()
    forms = {name: selector.pattern for name, selector in SELECTORS.items() if selector.pattern is not None}
    forms |= {"prefix": PREFIX, "resource": f"{PREFIX}/{NAME}", "team": TEAM}
    for kind in ("Rule", "VGPURule"):
        properties = made["$defs"][kind]["properties"]
        for field, form in forms.items():
            for choice in properties.get(field, {}).get("anyOf", ()):
                text = choice.get("items", choice)
                if text["type"] == "string":
                    text["pattern"] = f"^({form})$"
    return made


def written_out(config: Config) -> Any:
    """Return the config as plain values for a file, with every word and its default."""
    return _adapter().dump_python(config, mode="json")


@cache
def _adapter() -> "TypeAdapter[Config]":
    from pydantic import TypeAdapter

    return TypeAdapter(Config)


def _first(error: "ValidationError") -> tuple[str, str]:
    """Return the first error in words, after its path, and the fix."""
    first = error.errors()[0]
    location = first["loc"]
    # A selector is text or a list of texts, and pydantic reports both it tried.
    path = ".".join(str(part) for part in location if part not in _NO_FIELDS)
    where = f"{path}: " if path else ""
    what = "has no value" if first["input"] is None else f"found {_shown(first['input'])}"
    match first["type"]:
        case _ if isinstance(nonsense := first.get("ctx", {}).get("error"), Nonsense):
            return f"{where}{nonsense.wrong}", nonsense.fix
        case "unexpected_keyword_argument" | "extra_forbidden":
            return f"{where}is no word of the config", _meant(str(location[-1]), _words(location))
        case "enum":
            values = re.findall("'([^']*)'", first["ctx"]["expected"])  # 'a', 'b' or 'c'
            wrong = "is no word of the config" if location[-1] == "[key]" else what
            return f"{where}{wrong}", _meant(str(first["input"]), values)
        case kind:
            expected = next((words for start, words in _EXPECTED.items() if kind.startswith(start)), None)
            return (f"{where}{what}", expected) if expected else (f"{where}{first['msg']}", _READ)


def _shown(value: object) -> str:
    try:
        return repr(value)[:80]
    except ValueError:  # a number of thousands of digits
        return "a huge number"


def _words(location: tuple[int | str, ...]) -> list[str]:
    """Return the words that may stand at this location: of a rule, of a part of its own, or of the config."""
    parts = {"fabric": Fabric, "vgpus": VGPURule}
    within = Config if len(location) == 1 else parts.get(str(location[0]), Rule)
    return [field.name for field in fields(within)]


def _meant(word: str, known: list[str]) -> str:
    near = meant(word, known)
    return f"did you mean {near}?" if near else f"expected one of {', '.join(known)}"
