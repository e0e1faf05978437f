"""Objects as YAML that every reader takes for the same, whether of YAML 1.1, of 1.2, or kubectl's own mixture."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from program.errors import UserError

#: Texts that are text for every reader without quotes: kubectl's takes 1e3 for a number, and y for true.
_BARE = re.compile(r"[A-Za-z/][-A-Za-z0-9_./]*(?::[-A-Za-z0-9_./]+)*", re.ASCII)
_WORDS = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf", "infinity"])
_DEEPEST = 50


def documents(objects: Iterable[Mapping[str, Any]]) -> str:
    """Return a document for each object, in their order, with the keys in theirs."""
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, explicit_start=True, allow_unicode=True, width=120)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    if _BARE.fullmatch(text) and text.lower() not in _WORDS:
        style = ""
    elif text.isprintable():
        style = "'"
    elif text.replace("\n", "").isprintable():
        style = "|"  # where that cannot be, as with blanks at a line's end, PyYAML takes quotes
    else:
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def literal(argument: str) -> str:
    """Quote an argument of a container's command: Kubernetes replaces $(NAME) by a variable, and $$ by $
    (k8s.io/kubernetes/third_party/forked/golang/expansion)."""
    return argument.replace("$", "$$")


def plain(value: Any, path: str, depth: int = 0) -> Any:
    """Return the value as mappings with text keys, lists, texts, numbers, booleans and null; UserError, by its path in
    the manifest, for anything else, and for a value that contains itself (YAML's aliases)."""
    if depth > _DEEPEST:
        raise UserError(
            path[:200], f"is nested more than {_DEEPEST} levels deep", "expected what Kubernetes takes here"
        )
    match value:
        case Mapping():
            for key in value:
                if not isinstance(key, str):
                    raise UserError(path, f"has the key {key!r}, which is no text", "write it in quotes")
            return {key: plain(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
        case list() | tuple():
            return [plain(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
        case float() if not math.isfinite(value):
            raise UserError(path, f"{value!r} is no number that JSON has", "write it in quotes")
        case None | str() | bool() | int() | float():
            return value
        case _:
            raise UserError(path, f"found {type(value).__name__}", "expected text, a number, a list or a mapping")
