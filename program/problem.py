"""A problem as one value: a thing, what is wrong with it, what to do about it; and its severity.

Every error and every finding of both programs carries a Problem.
"""

import reprlib
from collections.abc import Iterable
from enum import IntEnum
from typing import Any, NamedTuple

#: How many problems are printed, each in its line. Further ones are counted.
MOST_LINES = 20


class Severity(IntEnum):
    """The severity of a finding, the worst last.

    An ERROR keeps a device from guests or a guest from starting. A WARNING is a danger, or means that a guest may run
    badly. A NOTE is worth knowing. OK means that nothing is wrong.
    """

    OK = 0
    NOTE = 1
    WARNING = 2
    ERROR = 3

    @property
    def word(self) -> str:
        """The name in lower case, for text and JSON."""
        return self.name.lower()

    @property
    def exit_code(self) -> int:
        """The exit code of a command whose worst finding this is."""
        return {Severity.WARNING: 3, Severity.ERROR: 4}.get(self, 0)


class Problem(NamedTuple):
    """A thing, what is wrong with it, and what to do about it; as text one line, `subject: wrong; fix`.

    `subject` names a file, a field, a device, a resource. `wrong` goes after that name, or after "it". `fix` says what
    to do, or what was expected.
    """

    subject: str
    wrong: str
    fix: str

    def as_json(self) -> dict[str, str]:
        """Return the three keys that every finding has in JSON, whichever command prints it."""
        return self._asdict()

    def __str__(self) -> str:
        text = f"{self.subject}: {self.wrong}" if self.subject else self.wrong
        return one_line(f"{text}; {self.fix}" if self.fix else text)


def one_line(text: object) -> str:
    """Return the text with unprintable characters escaped: names come from files and flags."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in str(text))


def printable(text: str) -> str:
    """Return the text with unprintable characters escaped, and its lines as they are."""
    return "\n".join(map(one_line, text.split("\n")))


def summary(names: Iterable[str], most: int = 6) -> str:
    """Return the first `most` names as one text, and how many more there are."""
    first = list(names)
    more = f" and {len(first) - most} more" if len(first) > most else ""
    return ", ".join(first[:most]) + more


_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxstring = _SHORT.maxother = 60


def excerpt(value: Any) -> str:
    """Return a value of the manifest, shortened, whatever its type."""
    try:
        text = _SHORT.repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:60]}..."
