"""docs/manifest.md, the table of every field of VirtualMachineInstanceSpec, against the model and against KubeVirt.

`make test ARGS=--regenerate` writes it anew: what becomes of a field and why comes from the model, and what stands in
the last column of a converted field is kept.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from launcher.manifest.spec import Spec
from launcher.model import Field, Ignored, PassedOn, Refused, fields, inside, is_model
from tests.processes import FIXTURES, ROOT

TABLE = ROOT / "docs" / "manifest.md"
KUBEVIRT = FIXTURES / "kubevirt" / "fields.yaml"
_ROW = re.compile(r"\| `(?P<path>[^`]+)` \| (?P<fate>converted|refused|ignored|passed on) \| (?P<what>.*) \|")


def walk(cls: Any, path: str = "spec") -> Iterator[tuple[str, Field]]:
    """Every field below a model, with its path, in the model's order; what is in a list is `list[]`."""
    for field in fields(cls):
        below = f"{path}.{field.name}"
        kind = inside(field.kind)
        yield below, field
        if is_model(kind):
            yield from walk(kind, below)


MODEL = dict(walk(Spec))


def fate(field: Field) -> str:
    match field.fate:
        case Refused():
            return "refused"
        case Ignored():
            return "ignored"
        case PassedOn():
            return "passed on"
        case _:
            return "converted"


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
        what = field.fate.why if field.fate else known.get(path, ("", ""))[1]
        rows.append(f"| `{path}` | {fate(field)} | {what} |\n")
    head = TABLE.read_text().partition("| `spec.")[0]
    TABLE.write_text(head + "".join(rows))


def test_the_table_has_every_field_of_the_model_and_no_other() -> None:
    assert list(table()) == list(MODEL)


@pytest.mark.parametrize("path", MODEL)
def test_the_table_says_what_the_model_does(path: str) -> None:
    field = MODEL[path]
    said, what = table()[path]
    assert said == fate(field)
    if field.fate is None:
        assert is_model(inside(field.kind)) or what.strip(), "say in the last column what it becomes"
    else:
        assert what == field.fate.why


def test_every_field_of_kubevirts_is_known() -> None:
    def paths(names: Any, path: str) -> Iterator[str]:
        for name, below in (names or {}).items():
            yield f"{path}.{name}"
            yield from paths(below, f"{path}.{name}")

    theirs = set(paths(yaml.safe_load(KUBEVIRT.read_text()), "spec"))
    assert theirs - set(MODEL) == set()
