"""YAML as Kubernetes reads it. Whole manifests and what is refused in them: tests/launcher/test_manifest.py."""

import pytest
import yaml

from program.document import NotYAML, read_document


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
        ("a: 1\na: 2", "line 2, column 1: the key 'a' is there twice"),
        ("a: 1\n---\nb: 2", "line 2: another document begins here, expected one in the file"),
        ("a: [b", "line 2, column 1: while parsing a flow sequence, did not find expected ',' or ']'"),
        ("a: !!int ''", "string index out of range"),
        ("[" * 100_000, "nested more than 100 levels deep"),
        (
            f"{{a: &a [{'1, ' * 1000}], b: [{'*a, ' * 100}]}}",
            "holds more than 100000 values",
        ),
    ],
)
def test_what_is_no_document_says_where_and_why(text: str, problem: str) -> None:
    with pytest.raises(NotYAML) as error:
        read_document(text)
    assert str(error.value).startswith(problem)


def test_an_empty_text_is_no_document() -> None:
    assert read_document("# a comment alone") is None
