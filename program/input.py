"""The input that a user names: a file, or `-` for standard input."""

import sys
from pathlib import Path
from typing import BinaryIO

from program.errors import UserError

#: The path that stands for standard input.
STDIN = Path("-")

_USUAL = 1 << 16  # read first: a buffer for the largest input costs the kernel's time


def input_name(path: Path) -> str:
    """Return the name of the input in errors."""
    return "standard input" if path == STDIN else str(path)


def read_input_bytes(path: Path, largest: int, expected: str) -> bytes:
    """Return the content; UserError, naming what was `expected`, if it cannot be read or has over `largest` bytes."""
    if path == STDIN and sys.stdin is None:
        raise UserError(input_name(path), "is closed", expected)
    try:
        if path == STDIN:
            content = _up_to(largest + 1, sys.stdin.buffer)
        else:
            with path.open("rb") as file:
                content = _up_to(largest + 1, file)
    except OSError as error:
        raise UserError(input_name(path), f"cannot be read: {error.strerror}", expected) from error
    if len(content) > largest:
        raise UserError(input_name(path), f"has more than {largest} bytes", expected)
    return content


def _up_to(largest: int, file: BinaryIO) -> bytes:
    content = file.read(_USUAL)
    return content + file.read(largest - _USUAL) if len(content) == _USUAL else content
