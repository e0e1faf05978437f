"""docs/manifest.md, the table of every field of VirtualMachineInstanceSpec, against the model and against KubeVirt.

`make test ARGS=--regenerate` writes it anew: what becomes of a field and why comes from the model, and what stands in
the last column of a converted field is kept.
"""

import re
from collections.abc import Iterator

import pytest
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from launcher.fields.objects import Ignored, Object, Unconverted, object_in
from launcher.vm.spec import Spec
from tests.processes import FIXTURES, ROOT

TABLE = ROOT / "docs" / "manifest.md"
KUBEVIRT = FIXTURES / "kubevirt" / "fields.txt"
_ROW = re.compile(r"\| `(?P<path>[^`]+)` \| (?P<fate>converted|refused|ignored|passed on) \| (?P<what>.*) \|")


def walk(kind: type[Object], path: str = "spec") -> Iterator[tuple[str, FieldInfo]]:
    """Every field below an object, with its path, in the model's order."""
    for name, field in kind.model_fields.items():
        yield f"{path}.{name}", field
        if (below := object_in(field.annotation)) is not None:
            yield from walk(below, f"{path}.{name}")


MODEL = dict(walk(Spec))
#: The paths of every field in KubeVirt's published API.
THEIRS = [line for line in KUBEVIRT.read_text().splitlines() if not line.startswith("#")]


def fate(field: FieldInfo) -> Unconverted | None:
    """What becomes of a field that is not converted."""
    return next((mark for mark in field.metadata if isinstance(mark, Unconverted)), None)


def below_unconverted() -> dict[str, tuple[str, Unconverted]]:
    """Fields of KubeVirt's that the model does not have, since one above them is not converted: that one's path, and
    what becomes of it."""
    found = {}
    for path in THEIRS:
        above = path
        while above not in MODEL and above != "spec":
            above = above.rpartition(".")[0]
        if above not in (path, "spec") and (mark := fate(MODEL[above])) is not None:
            found[path] = above, mark
    return found


BELOW = below_unconverted()


def rows() -> list[str]:
    """The paths of the table: the model's, each with what KubeVirt has below it where it is not converted."""
    return [row for path in MODEL for row in (path, *(below for below, (above, _) in BELOW.items() if above == path))]


def table() -> dict[str, tuple[str, str]]:
    """Path to fate and last column, as the document has them."""
    return {row["path"]: (row["fate"], row["what"]) for row in _ROW.finditer(TABLE.read_text())}


def marked(path: str) -> tuple[str, str] | None:
    """Fate and last column of a field that is not converted, or is below one."""
    if path in BELOW:
        above, mark = BELOW[path]
        return mark.word, f"with `{above}`"
    own = fate(MODEL[path])
    return None if own is None else (own.word, own.reason)


@pytest.fixture(autouse=True)
def regenerated(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--regenerate"):
        return
    known = table()
    lines = []
    for path in rows():
        word, what = marked(path) or ("converted", known.get(path, ("", ""))[1])
        lines.append(f"| `{path}` | {word} | {what} |\n")
    head = TABLE.read_text().partition("| `spec.")[0]
    TABLE.write_text(head + "".join(lines))


def test_the_table_has_every_field_of_the_model_and_what_is_below_one_that_is_not_converted() -> None:
    assert list(table()) == rows()


def test_every_field_of_kubevirts_has_its_row() -> None:
    assert len(THEIRS) == len(set(THEIRS)) >= 389
    assert [path for path in THEIRS if path not in table()] == []


@pytest.mark.parametrize("path", BELOW)
def test_what_is_below_a_field_that_is_not_converted_goes_with_it(path: str) -> None:
    assert table()[path] == marked(path)


@pytest.mark.parametrize("path", MODEL)
def test_the_table_says_what_the_model_does(path: str) -> None:
    word, what = table()[path]
    if (expected := marked(path)) is not None:
        assert (word, what) == expected
    else:
        assert word == "converted"
        assert object_in(MODEL[path].annotation) or what.strip(), "say in the last column what it becomes"


@pytest.mark.parametrize("path", MODEL)
def test_no_field_takes_a_text_that_xml_cannot_hold(path: str) -> None:
    if isinstance(fate(MODEL[path]), Ignored):
        return
    with pytest.raises(ValidationError):
        TypeAdapter(MODEL[path].rebuild_annotation()).validate_python("\x01")
