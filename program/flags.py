"""A flag of a command, as a value that a process without typer can have too."""

from collections.abc import Callable
from typing import NamedTuple


class Flag(NamedTuple):
    """Describe a flag in the annotation of a field or a parameter. The names are those of typer.Option.

    `parser` turns the word of the command line into the value. It raises ValueError, with the word and what was
    expected, for a wrong word.
    """

    help: str
    metavar: str | None = None
    envvar: str | None = None
    parser: Callable[[str], object] | None = None
