"""The output of a command: text, and the picture that it writes."""

import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

from program.errors import UserError
from program.problem import printable

_LONGEST_NAME = 253  # characters of an object's in Kubernetes
_NARROWEST = 20  # columns for a table's last cell: with less, a line for each word helps nobody


def print_text(text: str) -> None:
    """Write the text to standard output, in UTF-8 whatever the locale."""
    print_bytes(text.encode(errors="backslashreplace"))


def print_foreign(text: str | bytes) -> None:
    """Write a tenant's or guest's text to standard output: its lines, without characters that steer a terminal."""
    words = text.decode(errors="backslashreplace") if isinstance(text, bytes) else text
    print_text(printable(words))


def print_bytes(data: bytes) -> None:
    """Write bytes to standard output."""
    # Not sys.stdout, which is None if it was closed.
    with open(1, "wb", closefd=False) as stdout:
        stdout.write(data)


def natural_key(name: str) -> tuple[str, str]:
    """Return a key that sorts names as people count: train-2 before train-10."""
    return re.sub("[0-9]+", lambda number: number[0].zfill(_LONGEST_NAME), name), name


def aligned(rows: Sequence[Sequence[str]], columns: int | None = None) -> list[str]:
    """Return a line for each row, with the cells of a column below each other, two blanks between columns.

    If a line is longer than `columns`, the last cell is wrapped in its column, or, if not even its words fit there,
    below the other cells.
    """
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = sum(width + 2 for width in widths[:-1])
    if columns is None or left + widths[-1] <= columns:
        return [_line(row, widths) for row in rows]
    longest = max((len(word) for row in rows for word in row[-1].split()), default=0)
    if max(longest, _NARROWEST) > columns - left:
        return [line for *cells, last in rows for line in (_line(cells, widths), *_within(columns, "  ", last))]
    lines = []
    for *cells, last in rows:
        first, *more = _within(columns, " " * left, last) or [""]
        lines += [(_line(cells, widths).ljust(left) + first.lstrip()).rstrip(), *more]
    return lines


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=False)).rstrip()


def _within(columns: int, indent: str, text: str) -> list[str]:
    """Wrap the text between words only: people copy words."""
    return wrap(
        text, columns, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def picture_file(svg: Path | None) -> Path | None:
    """Return the file of `--svg`, or `-`; UserError, before anything is read, if its name does not end with .svg."""
    if svg is not None and str(svg) != "-" and svg.suffix.lower() != ".svg":
        raise UserError(f"--svg {svg}", "is no name of an SVG file", "expected FILE.svg, or - for standard output")
    return svg


def write_picture(svg: str, file: Path) -> None:
    """Write an SVG to the user's file, or to standard output for `-`; UserError if that fails."""
    if str(file) == "-":
        print_text(svg)
        return
    try:
        file.write_text(svg, encoding="utf-8")
    except OSError as error:
        raise UserError(
            file, f"cannot write the picture: {error.strerror}", "expected a file in a directory that can be written"
        ) from error
