"""docs/manifest.md, the table of the fields of VirtualMachineInstanceSpec, against the model and against KubeVirt.

`make test ARGS=--regenerate` writes it anew: the reasons of fields that are not converted come from the model, and what
stands in the last column of a converted field is kept.
"""

import re
from collections.abc import Iterator, Mapping

import pytest
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from launcher.fields.objects import Ignored, Object, Unconverted, object_in
from launcher.vm.spec import Spec
from tests.processes import FIXTURES, ROOT

TABLE = ROOT / "docs" / "manifest.md"
KUBEVIRT = FIXTURES / "kubevirt" / "fields.txt"
_ROW = re.compile(r"^\| (`spec\.[^|]+) \| (.*) \|$", re.MULTILINE)
#: A probe whose fields mean the same as the other's, which has the rows.
TWIN, PROBE = "spec.readinessProbe.", "spec.livenessProbe."


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


def table() -> dict[str, str]:
    """Path to last column, as the document has them."""
    rows = _ROW.findall(TABLE.read_text())
    return {path: what for paths, what in rows for path in re.findall("`([^`]+)`", paths)}


def becomes(path: str, known: Mapping[str, str]) -> str:
    """The last column: of a field that is not converted, what the model says, else what the document has."""
    mark = fate(MODEL[path])
    return known.get(path, "") if mark is None else f"**{mark.word}**: {mark.reason}"


def written() -> str:
    """The table's rows: fields of one part of the spec of which the same is said share one, and an object without a
    word of its own has none."""
    known, rows = table(), dict[tuple[str, ...], list[str]]()
    for path in MODEL:
        if not path.startswith(TWIN) and ((what := becomes(path, known)) or object_in(MODEL[path].annotation) is None):
            _, *parts = path.split(".")
            rows.setdefault((what, *parts[: 2 if parts[0] == "domain" else 1]), []).append(f"`{path}`")
    return "".join(f"| {', '.join(paths)} | {what} |\n" for (what, *_), paths in rows.items())


def test_the_table_says_what_the_model_does(request: pytest.FixtureRequest) -> None:
    before, old, after = re.split(r"((?:^\| `spec\..+\n)+)", TABLE.read_text(), flags=re.MULTILINE)
    if request.config.getoption("--regenerate"):
        TABLE.write_text(before + written() + after)
    else:
        assert old == written()


@pytest.mark.parametrize("path", [path for path in MODEL if object_in(MODEL[path].annotation) is None])
def test_of_each_field_the_table_has_what_it_becomes(path: str) -> None:
    assert becomes(path.replace(TWIN, PROBE), table()), "say in the last column what it becomes"


def test_every_field_of_kubevirts_is_in_the_model_or_below_one_that_is_not_converted() -> None:
    assert len(THEIRS) == len(set(THEIRS)) >= 389
    unconverted = tuple(f"{path}." for path in MODEL if fate(MODEL[path]) is not None)
    assert [path for path in THEIRS if path not in MODEL and not path.startswith(unconverted)] == []


@pytest.mark.parametrize("path", MODEL)
def test_no_field_takes_a_text_that_xml_cannot_hold(path: str) -> None:
    if isinstance(fate(MODEL[path]), Ignored):
        return
    with pytest.raises(ValidationError):
        TypeAdapter(MODEL[path].rebuild_annotation()).validate_python("\x01")
