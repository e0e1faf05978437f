"""A command's flag as a value, which does not need typer."""

from collections.abc import Callable
from typing import NamedTuple


class Flag(NamedTuple):
    """A flag in the annotation of a field or a parameter, with the names of typer.Option.

    `parser` makes the value from the word of the command line; its ValueError has the word and what was expected.
    """

    help: str
    metavar: str | None = None
    envvar: str | None = None
    parser: Callable[[str], object] | None = None
