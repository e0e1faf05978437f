"""Reads YAML as Kubernetes does, from text to plain values in one pass. PyYAML decides what a scalar means."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import yaml

from program.errors import Nonsense

JSONObject: TypeAlias = Mapping[str, Any]
"""A Kubernetes object, as it stands in a file."""

Nodes: TypeAlias = tuple[yaml.MappingNode, ...]
"""The mappings among the documents of a text, with their lines."""

_DEEPEST = 100
_MOST = 100_000  # ten times what etcd would store of the smallest values


#: What is wrong in the words of a user, and the fix, by what libyaml says. `context` is where the thing began that is
#: wrong, as `line 3`.
_WORDS = {
    "found unhashable key": ("a mapping or a list is a key", "expected text, in quotes if it begins with { or ["),
    "mapping values are not allowed in this context": (
        "a second `: ` is in this line, or the line is indented further than the one above",
        "put text with `: ` in quotes, or align the line",
    ),
    "could not find expected ':'": ("this line has no `key: value`", "write a colon and a space after the key"),
    "did not find expected key": ("this line is not aligned with the keys above it", "indent it as they are"),
    "did not find expected '-' indicator": (
        "this line is no item of the list above",
        "indent it as the list is, or less",
    ),
    "did not find expected ',' or ']'": (
        "the [ of {context} is not closed, or a comma is missing",
        "add ] or the comma",
    ),
    "did not find expected ',' or '}'": (
        "the {{ of {context} is not closed, or a comma is missing",
        "add } or the comma",
    ),
    "did not find expected node content": (
        "a value is missing before here, or a [ or {{ is not closed",
        "write the value, or close it",
    ),
    "found unexpected end of stream": ("the quote that begins here is not closed", "close it"),
    "did not find expected <document start>": (
        "the document has ended before here",
        "leave this out, or begin another document with ---",
    ),
}
#: For these libyaml says where it gave up, not where the thing began.
_FROM = ("could not find expected ':'", "found unexpected end of stream")


class NotYAML(Nonsense):
    """The text is no YAML, or YAML that is refused here. The message goes after the file's name and `place`.

    `place` is `:LINE` or `:LINE:COLUMN`, from 1, or empty if it is not known. `fix` is empty if it depends on the
    file's purpose.
    """

    def __init__(self, wrong: str, fix: str = "", place: str = "") -> None:
        super().__init__(wrong, fix)
        self.place = place


class Document(NamedTuple):
    """A document of a YAML text: its value, as mappings, lists and scalars, and the line where it begins, from 1."""

    value: Any
    line: int


def read_document(text: str) -> Any:
    """Return the value of the one document of a YAML text; None if there is none.

    Raise NotYAML for a second document, or as read_documents does.
    """
    documents = read_documents(text)
    if len(documents) > 1:
        raise NotYAML("has another document here", "expected one in the file", f":{documents[1].line}")
    return documents[0].value if documents else None


def read_documents(text: str, most: int = _MOST) -> tuple[Document, ...]:
    """Return the documents of a YAML text, without empty ones, like the one after a `---` at the end.

    Raise NotYAML for a text that is not YAML, a repeated key, a value that does not fit its tag (!!int "", !!bool
    maybe), a document nested deeper than 100 levels, and more than `most` values in all documents with each alias
    written out. Aliases are shared: they cost nothing here, but a caller that walks through the value pays for each.
    """
    try:
        return _Stream(text, most).read()
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
        # PyYAML raises the last three for values that do not fit their tag.
        raise _refusal(error, text) from error


def decoded(content: bytes) -> str:
    """Return the text of a file; NotYAML if it is not in UTF-8."""
    first = content[:2]
    if first in (b"\xff\xfe", b"\xfe\xff") or (0 in first and any(first)):
        raise NotYAML("is text in UTF-16", "save it as UTF-8", ":1")
    if 0 in content:
        raise NotYAML("is no text: it has bytes of zero", place=f":{_line(content, content.index(0))}")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        wrong = f"has the byte 0x{content[error.start]:02x}, which is not UTF-8"
        raise NotYAML(wrong, "save it as UTF-8", f":{_line(content, error.start)}") from error


def composed(text: str) -> Nodes:
    """Return the nodes of a text that has been read without an error, for line_of."""
    return tuple(node for node in yaml.compose_all(text, yaml.CSafeLoader) if isinstance(node, yaml.MappingNode))


def line_of(documents: Nodes, path: str, begin: int = 1) -> int:
    """Return the line, from 1, of the field at a path, like spec.disks[0].name; else of the object above it.

    `begin` is the line where the field's document begins. Other words may follow the path.
    """
    node: yaml.Node = next(document for document in documents if document.start_mark.line >= begin - 1)
    line = node.start_mark.line
    while (step := _step(node, path)) is not None:
        line, node, path = step
    return int(line) + 1


def _step(node: Any, path: str) -> tuple[int, Any, str] | None:
    """Return the line and the node of the path's first part, and the path from there; None if there is no such part."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            rest = path.removeprefix(key.value)
            if rest != path and (not rest or rest[0] in ".[: "):
                return key.start_mark.line, value, rest.lstrip(".")
    elif isinstance(node, yaml.SequenceNode):
        index = re.match(r"\[?(\d+)\]?\.?", path)
        if index is not None and int(index[1]) < len(node.value):
            item = node.value[int(index[1])]
            return item.start_mark.line, item, path[index.end() :]
    return None


def _line(content: bytes, position: int) -> int:
    return content.count(b"\n", 0, position) + 1


def _refusal(error: Any, text: str) -> NotYAML:
    """Return PyYAML's error in words that need no knowledge of how YAML is read."""
    mark, context = getattr(error, "problem_mark", None), getattr(error, "context_mark", None)
    if isinstance(error, yaml.reader.ReaderError):
        place = f":{_line(text.encode(), error.position)}"
        return NotYAML(f"is not YAML: has the character {chr(error.character)!r}", "leave it out", place)
    if mark is None:
        return NotYAML(f"is not YAML: {' '.join(str(error).split())}")
    if context is not None and error.problem in _FROM:
        mark = context
    lines = [*re.split("\r\n?|\n", text), ""]
    place = f":{mark.line + 1}:{mark.column + 1}"
    for at in (mark, *([context] if context else [])):
        if re.search(r"\{[{%]", lines[at.line]):
            fix = "give what is made of it, as `helm template` prints it"
            return NotYAML("is a template, which is not filled in here", fix, f":{at.line + 1}")
    problem, character = error.problem, lines[mark.line][mark.column : mark.column + 1]
    if character == "\t":
        return NotYAML("is not YAML: a tab is here, and YAML is indented with spaces", "write spaces", place)
    if problem == "found character that cannot start any token":
        return NotYAML(f"is not YAML: text cannot begin with {character}", "put it in quotes", place)
    if problem in _WORDS:
        wrong, fix = _WORDS[problem]
        return NotYAML(
            f"is not YAML: {wrong.format(context=f'line {context.line + 1}' if context else 'it')}", fix, place
        )
    parts = [part for part in (error.context, problem) if part]
    return NotYAML(f"is not YAML: {', '.join(parts)}", place=place)


class _Stream(yaml.CSafeLoader):
    """Makes values from libyaml's events, one by one."""

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
            self._anchored = {}  # anchors end with their document
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
            raise _problem(f"the tag {event.tag!r} is unknown here", event)
        if event.anchor is not None:
            self._anchored[event.anchor] = collection, 1  # it may contain itself
        if is_list:
            while type(event := self.get_event()) is not yaml.SequenceEndEvent:
                collection.append(self._value(event, depth + 1))
        else:
            self._fill_mapping(collection, depth + 1)
        return collection

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
                raise _problem("found unhashable key", event)
            written = event.value if type(event) is yaml.ScalarEvent else str(key)
            if written in seen:
                raise _problem(f"the key {written!r} is there twice", event)
            seen.add(written)
            own[key] = self._value(self.get_event(), depth)
        mapping.update(merged)
        mapping.update(own)

    def _merged(self, depth: int) -> dict[Any, Any]:
        """Return the mapping behind a merge key; of several mappings, the first one that has a key counts."""
        event: Any = self.get_event()
        value = self._value(event, depth)
        merged: dict[Any, Any] = {}
        for mapping in reversed(value) if isinstance(value, list) else [value]:
            if not isinstance(mapping, dict):
                raise _problem("<< merges a mapping, or a list of mappings", event)
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
