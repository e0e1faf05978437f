"""The errors of a program, as one tree.

ProgramError
├── UserError     a manifest, a variable, a config or a flag of the user's: exit code 2
└── Refusal       libvirt, the kubelet, sysfs or the state of the node says no: exit code 1
"""

from collections.abc import Callable, Sequence
from typing import Self

from program.problem import MOST_LINES, Problem


class ProgramError(Exception):
    """Carries a Problem, or several to be solved together. `left_out` counts further problems without a text."""

    exit_code = 1

    def __init__(self, subject: object, wrong: str, fix: str, *more: Problem) -> None:
        super().__init__(subject, wrong, fix, *more)
        self.problem = Problem(str(subject), wrong, fix)
        self.problems = (self.problem, *more)
        self.left_out = 0

    @classmethod
    def of(cls, problems: Sequence[Problem], left_out: int = 0) -> Self:
        """Return the error of these problems, at least one, and of `left_out` more."""
        first, *more = problems
        error = cls(*first, *more)
        error.left_out = left_out
        return error

    def changed(self, change: Callable[[Problem], Problem]) -> Self:
        """Return the error with each of its problems changed."""
        return self.of([*map(change, self.problems)], self.left_out)

    @property
    def lines(self) -> tuple[str, ...]:
        """A line for each of the first MOST_LINES problems, and one that counts the others."""
        return first_lines(self.problems, left_out=self.left_out)

    def __str__(self) -> str:
        return "; ".join(self.lines)


class UserError(ProgramError):
    exit_code = 2


class Refusal(ProgramError):
    pass


def together(errors: Sequence[ProgramError]) -> ProgramError:
    """Return one error with all problems of these errors, and the first one's exit code."""
    kind = UserError if isinstance(errors[0], UserError) else Refusal
    return kind.of([each for error in errors for each in error.problems], sum(error.left_out for error in errors))


def first_lines(texts: Sequence[object], most: int = MOST_LINES, left_out: int = 0) -> tuple[str, ...]:
    """Return the first `most` texts, and a line that counts all others, with the `left_out` ones."""
    more = len(texts[most:]) + left_out
    return (*map(str, texts[:most]), *([f"and {more} more"] if more else []))


class Nonsense(ValueError):
    """A value is invalid: what is `wrong`, in words after the path of a field or "it", and the `fix`. The reader of the
    file knows the path, and makes a UserError of this."""

    def __init__(self, wrong: str, fix: str) -> None:
        super().__init__(wrong, fix)
        self.wrong = wrong
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.wrong}; {self.fix}"
