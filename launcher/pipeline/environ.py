"""The pod's variables, as the flags --env and --env-file give them."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from program.errors import UserError

_EXPECTED = "expected NAME=VALUE"
_EXPECTED_FILE = f"{_EXPECTED} on each line of a file of text"


def variables(settings: list[str], path: Path | None) -> Mapping[str, str]:
    """Variables from --env-file, then from --env, which win; UserError for what is not NAME=VALUE."""
    values = _in_file(path) if path is not None else {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not (name and equals):
            raise UserError(f"--env {setting}", "has no name and value", _EXPECTED)
        values[name] = value
    return values


def _in_file(path: Path) -> dict[str, str]:
    """NAME=VALUE lines, as `env` prints them in a pod; or as `export` does there, with quotes."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise UserError(path, f"cannot read the variables: {error.strerror}", _EXPECTED_FILE) from error
    except UnicodeDecodeError as error:
        raise UserError(path, f"cannot read the variables: {error}", _EXPECTED_FILE) from error
    values = {}
    for number, line in enumerate(lines, start=1):
        setting = _unexported(line)
        if not setting.strip() or setting.startswith("#"):
            continue
        name, equals, value = setting.partition("=")
        if not (name and equals) or " " in name:
            raise UserError(f"{path}: line {number}", f"found {line[:60]!r}", _EXPECTED)
        values[name] = value
    return values


def _unexported(line: str) -> str:
    """NAME=VALUE of a line as the shell's `export` prints it; empty for a name that is exported without a value."""
    exported = re.match(r"(?:export|declare -[a-z]*x[a-z]*) (.*)", line)
    if exported is None:
        return line
    try:
        words = shlex.split(exported[1])
    except ValueError:
        return line  # a quote that is never closed
    if len(words) != 1:
        return line
    return words[0] if "=" in words[0] else ""
