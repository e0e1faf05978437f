"""Values that are passed on word for word, in a form that all readers of YAML and JSON read alike."""

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from program.errors import UserError

PodObject: TypeAlias = dict[str, Any]
"""A pod's object, or a part of it, as JSON has it."""

_DEEPEST = 50


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
