"""YAML that kubectl, which reads neither 1.1 nor 1.2 by the book, takes for what was meant."""

import re
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from launcher.pod.documents import documents

TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]))
VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=12,
)


@given(st.lists(st.dictionaries(TEXTS, VALUES), min_size=1, max_size=3))
def test_whatever_is_written_is_read_back_the_same(objects: list[dict[str, Any]]) -> None:
    assert list(yaml.load_all(documents(objects), yaml.CSafeLoader)) == objects


def test_a_text_that_some_reader_takes_for_a_number_or_a_truth_is_in_quotes() -> None:
    for text in (
        "y",
        "N",
        "on",
        "NULL",
        "nan",
        "1e3",
        "0o14",
        "0x1F",
        "12e4567",
        "1_000",
        "12:30:45",
        ".5",
        "-",
        "~",
        "=",
    ):
        assert documents([{"a": text}]) == f"---\na: '{text}'\n"
        assert documents([{text: "a"}]) == f"---\n'{text}': a\n"


def test_a_plain_word_and_a_manifest_are_as_people_write_them() -> None:
    written = documents([{"image": "registry.example.com/gpu-launcher:1.0", "vm.yaml": "a: 1\n\nb: 2\n"}])
    assert written == "---\nimage: registry.example.com/gpu-launcher:1.0\nvm.yaml: |\n  a: 1\n\n  b: 2\n"


def test_nothing_is_said_by_reference() -> None:
    shared = {"a": "b"}
    assert not re.search("[&*]", documents([{"one": shared, "two": shared}]))
