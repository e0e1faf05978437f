"""What a command prints: tables, as wide as a terminal is, and pictures."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from program.errors import UserError
from program.output import aligned, natural_key, picture_file, write_picture
from program.problem import Severity
from program.terminal import is_coloured, painted

ROWS = [("A", "WHY"), ("long", "it has many words in it"), ("x", "")]


def test_a_last_cell_goes_on_below_itself() -> None:
    assert aligned(ROWS, 30) == ["A     WHY", "long  it has many words in it", "x"]
    assert aligned(ROWS, 26) == ["A     WHY", "long  it has many words in", "      it", "x"]


def test_where_its_words_do_not_fit_beside_the_others_it_stands_below_them() -> None:
    rows = [("A", "WHY"), ("long", "one and-a-word-that-is-longer")]
    assert aligned(rows, 27) == ["A", "  WHY", "long", "  one", "  and-a-word-that-is-longer"]


def test_names_are_sorted_as_people_count() -> None:
    names = ["a-b", "train", "train-01", "train-1", "train-2", "train-2-b", "train-10", "train-" + "9" * 5000]
    assert sorted({*names}, key=natural_key) == names


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=40).map(" ".join), min_size=1), st.integers(30, 100))
def test_no_line_is_wider_and_no_word_is_lost(cells: list[str], columns: int) -> None:
    lines = aligned([("row", cell) for cell in cells], columns)
    assert all(len(line) <= columns for line in lines)
    assert " ".join(lines).split() == [word for cell in cells for word in ("row", *cell.split())]


@pytest.mark.parametrize(
    ("environ", "is_terminal", "expected"),
    [
        ({}, True, True),
        ({"NO_COLOR": ""}, True, True),  # no-color.org: when present and not an empty string
        ({"NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
        ({}, False, False),
    ],
)
def test_a_terminal_has_colours_unless_somebody_minds(
    environ: dict[str, str], is_terminal: bool, expected: bool
) -> None:
    terminal, other = os.openpty()
    file = os.open(os.devnull, os.O_WRONLY)
    try:
        assert is_coloured(other if is_terminal else file, environ) is expected
    finally:
        for descriptor in (terminal, other, file):
            os.close(descriptor)


def test_a_severity_has_its_colour_or_none() -> None:
    assert painted("ERROR", Severity.ERROR, coloured=True) == "\x1b[1;31mERROR\x1b[0m"
    assert painted("ERROR", Severity.ERROR, coloured=False) == "ERROR"


def test_a_picture_is_an_svg_file_or_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    for file in (None, Path("-"), Path("a/node.svg"), Path("NODE.SVG")):
        assert picture_file(file) == file
    for name in ("node.png", "node", ".svg"):
        with pytest.raises(UserError, match=f"--svg {name}: is no name of an SVG file; expected FILE.svg, or - for"):
            picture_file(Path(name))
    write_picture("<svg/>", Path("-"))
    assert capfd.readouterr().out == "<svg/>"
