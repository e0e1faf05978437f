"""A flag of a command, as a value that a process without typer can have too."""

from collections.abc import Callable
from typing import NamedTuple


class Flag(NamedTuple):
    """What typer.Option would say of a flag, by typer's names, in the annotation of a field or a parameter.

    `parser` makes the value of a word, and raises ValueError for a wrong one, with the word and what was expected.
    """

    help: str
    metavar: str | None = None
    envvar: str | None = None
    parser: Callable[[str], object] | None = None
