"""What a command prints, and the picture that it writes."""

from collections.abc import Sequence
from pathlib import Path

from program.errors import UserError


def print_text(text: str) -> None:
    """Write the text to standard output, in UTF-8 whatever the locale."""
    # Not sys.stdout, which is None if it was closed.
    with open(1, "wb", closefd=False) as stdout:
        stdout.write(text.encode(errors="backslashreplace"))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row, with its cells below each other, two blanks apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def write_picture(svg: str, file: Path) -> None:
    """Write an SVG to the file that the user named; UserError if it cannot be written."""
    try:
        file.write_text(svg, encoding="utf-8")
    except OSError as error:
        raise UserError(
            file, f"cannot write the picture: {error.strerror}", "expected a file in a directory that can be written"
        ) from error
