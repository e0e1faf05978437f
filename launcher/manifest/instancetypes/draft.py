"""Values at a path of a plain document, and a VirtualMachine's document while fields are filled in."""

from collections.abc import Mapping
from typing import Any

#: Keys of mappings and indices of lists, from the document's root.
Path = tuple[str | int, ...]

_SPEC = ("spec", "template", "spec")
_TEMPLATE = ("spec", "template")


class Draft:
    """A VM's document and the values filled in so far. The original document stays unchanged.

    Paths are from spec.template.spec. `origins` has the path of each value that was filled in, from the document's
    root, and where the value comes from. On a path through anything but mappings and lists nothing is found and nothing
    filled in; reading the document reports that error.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document: Mapping[str, Any] = document
        self.origins: dict[Path, str] = {}

    def get(self, *path: str | int) -> Any:
        """Return the value at a path; None if it is missing, null or an empty text, which all mean an unset field."""
        return value_at(self.document, (*_SPEC, *path))

    def items(self, *path: str | int) -> tuple[Mapping[str, Any], ...]:
        """Return the mappings of a list; () if the list is missing, or has other items."""
        items = self.get(*path)
        return tuple(items) if isinstance(items, list) and all(isinstance(item, dict) for item in items) else ()

    def names(self, *path: str | int) -> tuple[str, ...]:
        """Return the names of a list's items, in their order."""
        return tuple(item["name"] for item in self.items(*path) if isinstance(item.get("name"), str))

    def annotations(self) -> Mapping[str, Any]:
        annotations = value_at(self.document, (*_TEMPLATE, "metadata", "annotations"))
        return annotations if isinstance(annotations, dict) else {}

    def set(self, path: Path, value: Any, origin: str) -> None:
        self._set((*_SPEC, *path), value, origin)

    def fill(self, path: Path, value: Any, origin: str) -> None:
        """Set the value at a path if there is none yet."""
        if self.get(*path) is None:
            self.set(path, value, origin)

    def append(self, path: Path, item: Any, origin: str) -> None:
        """Add an item to the end of the list at a path."""
        items = self.get(*path)
        if items is None or isinstance(items, list):
            self.set((*path, len(items or ())), item, origin)

    def fill_annotation(self, name: str, value: str, origin: str) -> None:
        if name not in self.annotations():
            self._set((*_TEMPLATE, "metadata", "annotations", name), value, origin)

    def fill_in_templates(self, name: str, value: Any, origin: str) -> None:
        """Fill in a field of the claim, `pvc` or `storage`, of each dataVolumeTemplate."""
        templates = value_at(self.document, ("spec", "dataVolumeTemplates"))
        for index in range(len(templates)) if isinstance(templates, list) else ():
            for kind in ("pvc", "storage"):
                path: Path = ("spec", "dataVolumeTemplates", index, "spec", kind)
                if isinstance(value_at(self.document, path), dict) and value_at(self.document, (*path, name)) is None:
                    self._set((*path, name), value, origin)

    def _set(self, path: Path, value: Any, origin: str) -> None:
        try:
            self.document = with_value(self.document, path, value)
        except _Astray:
            return
        self.origins[path] = origin


class _Astray(Exception):
    """Raised for a path through something that is neither a mapping nor a list."""


def value_at(value: Any, path: Path) -> Any:
    """Return the value at a path; None if it is missing, null or an empty text."""
    for part in path:
        if isinstance(part, int):
            value = value[part] if isinstance(value, list) and part < len(value) else None
        else:
            value = value.get(part) if isinstance(value, dict) else None
    return None if value == "" else value


def with_value(value: Any, path: Path, new: Any) -> Any:
    """Return a copy of the value with a new one at the path; the copy shares all other parts."""
    if not path:
        return new
    first, rest = path[0], path[1:]
    if isinstance(first, int):
        items = [] if value is None else value
        if not isinstance(items, list) or first > len(items):
            raise _Astray
        old = items[first] if first < len(items) else None
        return [*items[:first], with_value(old, rest, new), *items[first + 1 :]]
    if value is not None and not isinstance(value, dict):
        raise _Astray
    mapping = value or {}
    return {**mapping, first: with_value(mapping.get(first), rest, new)}
