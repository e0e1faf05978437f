"""docs/manifest.md, the table of every field of VirtualMachineInstanceSpec, against the model and against KubeVirt.

`make test ARGS=--regenerate` writes it anew: what becomes of a field and why comes from the model, and what stands in
the last column of a converted field is kept.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from launcher.manifest.objects import Ignored, Object, Unconverted, object_in
from launcher.manifest.spec import Spec
from tests.processes import FIXTURES, ROOT

TABLE = ROOT / "docs" / "manifest.md"
KUBEVIRT = FIXTURES / "kubevirt" / "fields.yaml"
_ROW = re.compile(r"\| `(?P<path>[^`]+)` \| (?P<fate>converted|refused|ignored|passed on) \| (?P<what>.*) \|")


def walk(kind: type[Object], path: str = "spec") -> Iterator[tuple[str, FieldInfo]]:
    """Every field below an object, with its path, in the model's order."""
    for name, field in kind.model_fields.items():
        yield f"{path}.{name}", field
        if (below := object_in(field.annotation)) is not None:
            yield from walk(below, f"{path}.{name}")


MODEL = dict(walk(Spec))


def fate(field: FieldInfo) -> Unconverted | None:
    """What becomes of a field that is not converted."""
    return next((mark for mark in field.metadata if isinstance(mark, Unconverted)), None)


def table() -> dict[str, tuple[str, str]]:
    """Path to fate and last column, as the document has them."""
    return {row["path"]: (row["fate"], row["what"]) for row in _ROW.finditer(TABLE.read_text())}


@pytest.fixture(autouse=True)
def regenerated(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--regenerate"):
        return
    known = table()
    rows = []
    for path, field in MODEL.items():
        mark = fate(field)
        word, what = (mark.word, mark.reason) if mark is not None else ("converted", known.get(path, ("", ""))[1])
        rows.append(f"| `{path}` | {word} | {what} |\n")
    head = TABLE.read_text().partition("| `spec.")[0]
    TABLE.write_text(head + "".join(rows))


def test_the_table_has_every_field_of_the_model_and_no_other() -> None:
    assert list(table()) == list(MODEL)


@pytest.mark.parametrize("path", MODEL)
def test_the_table_says_what_the_model_does(path: str) -> None:
    field = MODEL[path]
    mark = fate(field)
    word, what = table()[path]
    if mark is None:
        assert word == "converted"
        assert object_in(field.annotation) or what.strip(), "say in the last column what it becomes"
    else:
        assert (word, what) == (mark.word, mark.reason)


@pytest.mark.parametrize("path", MODEL)
def test_no_field_takes_a_text_that_xml_cannot_hold(path: str) -> None:
    if isinstance(fate(MODEL[path]), Ignored):
        return
    with pytest.raises(ValidationError):
        TypeAdapter(MODEL[path].rebuild_annotation()).validate_python("\x01")


def test_every_field_of_kubevirts_is_known() -> None:
    def paths(names: Any, path: str) -> Iterator[str]:
        for name, below in (names or {}).items():
            yield f"{path}.{name}"
            yield from paths(below, f"{path}.{name}")

    theirs = set(paths(yaml.safe_load(KUBEVIRT.read_text()), "spec"))
    assert theirs - set(MODEL) == set()
