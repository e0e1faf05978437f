"""YAML as Kubernetes reads it, from text to plain values in one pass; what a scalar means is PyYAML's to say."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import yaml

JSONObject: TypeAlias = Mapping[str, Any]
"""An object of Kubernetes as a file has it."""

_DEEPEST = 100
_MOST = 100_000  # ten times what etcd would store of the smallest values


class NotYAML(ValueError):
    """The text is not a YAML document that is taken here; says where and why."""


class Document(NamedTuple):
    """A document of a YAML text: its value, as mappings, lists and scalars, and the line where it begins, from 1."""

    value: Any
    line: int


def read_document(text: str) -> Any:
    """Return the value of the one document of a YAML text; None if there is none.

    NotYAML for a second document, and as for read_documents.
    """
    documents = read_documents(text)
    if len(documents) > 1:
        raise NotYAML(f"line {documents[1].line}: another document begins here, expected one in the file")
    return documents[0].value if documents else None


def read_documents(text: str, most: int = _MOST) -> tuple[Document, ...]:
    """Return the documents of a YAML text. One that is empty, like what comes after a `---` at the end, is none.

    NotYAML for what is not YAML, for a key that is there twice, for a value that is not of its tag (!!int "",
    !!bool maybe), for a document nested deeper than anybody writes, and for more in all documents than that. Aliases
    are shared and cost nothing until somebody walks through them: what counts is how much a document holds with each
    alias written out.
    """
    try:
        return _Stream(text, most).read()
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
        # The last three are PyYAML's, for values that are not of their tag.
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        parts = [part for part in (getattr(error, "context", None), getattr(error, "problem", None)) if part]
        raise NotYAML(where + (", ".join(parts) or " ".join(str(error).split()))) from error


class _Stream(yaml.CSafeLoader):
    """Makes values of libyaml's events as they come."""

    def __init__(self, text: str, most: int) -> None:
        super().__init__(text)
        self._most = most
        self._held = 0  # values so far
        self._anchored: dict[str, tuple[Any, int]] = {}  # by anchor: the value, and how much it holds

    def read(self) -> tuple[Document, ...]:
        self.get_event()  # the stream's start
        documents = []
        start: Any
        while type(start := self.get_event()) is not yaml.StreamEndEvent:
            self._anchored = {}  # an anchor is its document's
            value = self._value(self.get_event(), 1)
            if value is not None:
                documents.append(Document(value, start.start_mark.line + 1))
            self.get_event()  # the document's end
        return tuple(documents)

    def _value(self, event: Any, depth: int) -> Any:
        """Return the value that begins with this event; the document itself is at depth 1."""
        kind, anchor = type(event), event.anchor
        if kind is yaml.AliasEvent:
            if anchor not in self._anchored:
                raise _problem("found undefined alias", event)
            value, size = self._anchored[anchor]
            self._hold(size)
            return value
        if anchor is not None and anchor in self._anchored:
            raise _problem("found duplicate anchor", event)
        before = self._held
        self._hold(1)
        value = self._scalar(event) if kind is yaml.ScalarEvent else self._collection(event, depth)
        if anchor is not None:
            self._anchored[anchor] = value, self._held - before
        return value

    def _collection(self, event: Any, depth: int) -> Any:
        is_list = type(event) is yaml.SequenceStartEvent
        collection: Any = [] if is_list else {}
        if depth == _DEEPEST:
            raise ValueError(f"nested more than {_DEEPEST} levels deep")
        if event.tag not in (None, "!", f"tag:yaml.org,2002:{'seq' if is_list else 'map'}"):
            raise _problem(f"could not determine a constructor for the tag {event.tag!r}", event)
        if event.anchor is not None:
            self._anchored[event.anchor] = collection, 1  # it may contain itself
        if is_list:
            self._fill_list(collection, depth + 1)
        else:
            self._fill_mapping(collection, depth + 1)
        return collection

    def _fill_list(self, items: list[Any], depth: int) -> None:
        while type(event := self.get_event()) is not yaml.SequenceEndEvent:
            items.append(self._value(event, depth))

    def _fill_mapping(self, mapping: dict[Any, Any], depth: int) -> None:
        event: Any
        merged: dict[Any, Any] = {}
        own: dict[Any, Any] = {}
        seen = set()  # the keys as they are written, which is how Kubernetes takes them
        while type(event := self.get_event()) is not yaml.MappingEndEvent:
            if type(event) is yaml.ScalarEvent and event.value == "<<" and event.implicit[0]:
                self._hold(1)
                merged.update(self._merged(depth))
                continue
            key = self._value(event, depth)
            if isinstance(key, list | dict):
                raise _problem("while constructing a mapping, found unhashable key", event)
            written = event.value if type(event) is yaml.ScalarEvent else str(key)
            if written in seen:
                raise _problem(f"the key {written!r} is there twice", event)
            seen.add(written)
            own[key] = self._value(self.get_event(), depth)
        mapping.update(merged)
        mapping.update(own)

    def _merged(self, depth: int) -> dict[Any, Any]:
        """Return what stands behind a merge key: of several mappings, the first that has a key counts."""
        event: Any = self.get_event()
        value = self._value(event, depth)
        merged: dict[Any, Any] = {}
        for mapping in reversed(value) if isinstance(value, list) else [value]:
            if not isinstance(mapping, dict):
                raise _problem("while constructing a mapping, expected a mapping or list of mappings to merge", event)
            merged.update(mapping)
        return merged

    def _scalar(self, event: Any) -> Any:
        value, tag = event.value, event.tag
        if tag is None or tag == "!":
            if value[:1] not in self.yaml_implicit_resolvers:
                return value  # nothing but text begins with that
            tag = self.resolve(yaml.ScalarNode, value, event.implicit)  # type: ignore[no-untyped-call]
            if tag == "tag:yaml.org,2002:timestamp" or ":" in value:
                return value  # Go's reader has no dates and no numbers to base 60: 52:54:00:12:34:56 is a text
        if tag == "tag:yaml.org,2002:str":
            return value
        return self.construct_document(yaml.ScalarNode(tag, value, event.start_mark))

    def _hold(self, size: int) -> None:
        self._held += size
        if self._held > self._most:
            raise ValueError(f"holds more than {self._most} values, with its aliases written out")


def _problem(text: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=text, problem_mark=event.start_mark)
