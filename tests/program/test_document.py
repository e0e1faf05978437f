"""YAML as Kubernetes reads it. Whole manifests and what is refused in them: tests/launcher/test_manifest.py."""

import pytest
import yaml

from program.document import NotYAML, composed, decoded, line_of, read_document

TEMPLATE = "is a template, which is not filled in here; give what is made of it, as `helm template` prints it"


def test_a_mappings_own_keys_stand_before_merged_ones_and_the_first_of_those_before_the_others() -> None:
    assert read_document("{<<: [{a: 1, b: 1}, {b: 2, c: 2}], c: 3}") == {"a": 1, "b": 1, "c": 3}
    assert read_document('{"<<": {a: 1}}') == {"<<": {"a": 1}}


def test_a_scalar_is_what_pyyaml_makes_of_it() -> None:
    plain = ("1", "0x1F", "017", "1_000", "-1.5", "1.5e+3", "yes", "Off", "~", "", ".inf")
    tagged = ("!!str 1", "! 1", "!!int '7'", "!!float 1", "!!binary aGk=")
    text = "\n".join(f"- {scalar}" for scalar in (*plain, *tagged, *(f"'{scalar}'" for scalar in plain)))
    assert read_document(text) == yaml.safe_load(text)


@pytest.mark.parametrize("scalar", ["190:20:30", "52:54:00:12:34:56", "1:30.5", "2001-01-02", "2001-01-02 03:04:05"])
def test_what_yaml_1_1_takes_for_numbers_to_base_60_and_dates_is_a_text_as_for_go(scalar: str) -> None:
    assert read_document(f"a: {scalar}") == {"a": scalar}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\na: 2", ":2:1: is not YAML: the key 'a' is there twice; "),
        ("a: 1\n---\nb: 2", ":2: has another document here; expected one in the file"),
        ("a: !!int ''", ": is not YAML: string index out of range; "),
        ("[" * 100_000, ": is not YAML: nested more than 100 levels deep; "),
        (f"{{a: &a [{'1, ' * 1000}], b: [{'*a, ' * 100}]}}", ": is not YAML: holds more than 100000 values"),
        # The words of libyaml before, and ours, which need no knowledge of how YAML is read:
        # found character that cannot start any token
        ("a:\n\tb: 1", ":2:1: is not YAML: a tab is here, and YAML is indented with spaces; write spaces"),
        ("a:\n  b: @c", ":2:6: is not YAML: text cannot begin with @; put it in quotes"),
        # found a tab character that violates indentation
        ("a: b\n\tc: 1", ":2:1: is not YAML: a tab is here, and YAML is indented with spaces; write spaces"),
        # while constructing a mapping, found unhashable key
        ("a:\n- b: {{ .Values.b }}", f":2: {TEMPLATE}"),
        ("? [a]\n: b", ":1:3: is not YAML: a mapping or a list is a key; expected text, in quotes if it begins with {"),
        # while scanning a simple key, could not find expected ':'
        ("a: 1\n{{- if .Values.b }}\nb: 1", f":2: {TEMPLATE}"),
        ("a: 1\nb\nc: 1", ":2:1: is not YAML: this line has no `key: value`; write a colon and a space after the key"),
        ("a: 1\n{% if b %}\nb: 1", f":2: {TEMPLATE}"),
        # mapping values are not allowed in this context
        (
            "a: b: c",
            ":1:5: is not YAML: a second `: ` is in this line, or the line is indented further than the one above;",
        ),
        # while parsing a block mapping, did not find expected key
        (
            "a:\n  b: 1\n c: 2",
            ":3:2: is not YAML: this line is not aligned with the keys above it; indent it as they are",
        ),
        # while parsing a block collection, did not find expected '-' indicator
        ("- a\nb: c", ":2:1: is not YAML: this line is no item of the list above; indent it as the list is, or less"),
        # while parsing a flow sequence, did not find expected ',' or ']'
        ("a: [b", ":2:1: is not YAML: the [ of line 1 is not closed, or a comma is missing; add ] or the comma"),
        ('{"a": 1\n "b": 2}', ":2:5: is not YAML: the { of line 1 is not closed, or a comma is missing; add } or the "),
        # while parsing a flow node, did not find expected node content
        ("a: [", ":2:1: is not YAML: a value is missing before here, or a [ or { is not closed; write the value, or"),
        # while scanning a quoted scalar, found unexpected end of stream
        ('a: "b\nc: d\n', ":1:4: is not YAML: the quote that begins here is not closed; close it"),
        # did not find expected <document start>
        (
            '{"a": 1}\n}',
            ":2:1: is not YAML: the document has ended before here; leave this out, or begin another docum",
        ),
        # unacceptable character #x0007: control characters are not allowed in "<unicode string>", position 6
        ("a: 1\nb\a: 2", ":2: is not YAML: has the character '\\x07'; leave it out"),
    ],
)
def test_what_is_no_document_says_where_and_why(text: str, problem: str) -> None:
    with pytest.raises(NotYAML) as error:
        read_document(text)
    assert f"{error.value.place}: {error.value}".startswith(problem)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        # 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte
        ("a: 1".encode("utf-16"), ":1: is text in UTF-16; save it as UTF-8"),
        ("a: 1".encode("utf-16-be"), ":1: is text in UTF-16; save it as UTF-8"),
        ("a: 1\nb: é".encode("latin-1"), ":2: has the byte 0xe9, which is not UTF-8; save it as UTF-8"),
        (b"\x1f\x8b\x08\0", ":1: is no text: it has bytes of zero; "),
    ],
)
def test_what_is_not_in_utf_8_says_so(content: bytes, problem: str) -> None:
    with pytest.raises(NotYAML) as error:
        decoded(content)
    assert f"{error.value.place}: {error.value}" == problem


def test_a_path_has_the_line_of_the_field_or_of_what_is_above_it() -> None:
    text = """# a comment
a: 1
---
spec:
  disks:
  - name: x

  - name: y
    disk:
      bus: virtio
  "labels": &same
    k8s.io/a.b: 1
  other: *same
---
spec: 2
"""
    documents = composed(text)
    lines = {
        "": 4,
        "spec": 4,
        "spec.disks[0]": 6,
        "spec.disks[1].name": 8,
        "spec.disks.1.disk.bus (of b)": 10,
        "spec.disks[2]": 5,
        "spec.disks[1].cache": 8,
        "spec.labels.k8s.io/a.b": 12,
        "spec.other.k8s.io/a.b: is wrong": 12,
        "status": 4,
    }
    assert {path: line_of(documents, path, begin=3) for path in lines} == lines
    assert (line_of(documents, "a"), line_of(documents, "spec", begin=14)) == (2, 15)
    assert line_of(composed('{"a": 1,\n"b": [\n2]}'), "b[0]") == 3


def test_an_empty_text_is_no_document() -> None:
    assert read_document("# a comment alone") is None
