"""Objects as YAML that every reader takes for the same, whether of YAML 1.1, of 1.2, or kubectl's own mixture."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

#: Texts that are text for every reader without quotes: kubectl's takes 1e3 for a number, and y for true.
_BARE = re.compile(r"[A-Za-z/][-A-Za-z0-9_./]*(?::[-A-Za-z0-9_./]+)*", re.ASCII)
_WORDS = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf", "infinity"])


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
