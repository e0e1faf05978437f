"""What can go wrong in a program, as one tree.

ProgramError
├── UserError     a manifest, a variable, a config or a flag of the user's: exit code 2
└── Refusal       libvirt, the kubelet, sysfs or the state of the node says no: exit code 1
"""

from collections.abc import Sequence
from typing import Self

from program.problem import MOST_LINES, Problem


class ProgramError(Exception):
    """Carries a Problem, or several that have to be solved together; as text it is their one line.

    `left_out`: how many more there are, which nobody has put into words.
    """

    exit_code = 1

    def __init__(self, subject: object, wrong: str, fix: str, *more: Problem) -> None:
        super().__init__(subject, wrong, fix, *more)
        self.problem = Problem(str(subject), wrong, fix)
        self.problems = (self.problem, *more)
        self.left_out = 0

    @classmethod
    def of(cls, problems: Sequence[Problem], left_out: int = 0) -> Self:
        """Return the error of at least one problem, and of so many more."""
        first, *more = problems
        error = cls(*first, *more)
        error.left_out = left_out
        return error

    @property
    def lines(self) -> tuple[str, ...]:
        """A line for each problem, of many for the first twenty, and how many more there are."""
        return first_lines(self.problems, left_out=self.left_out)

    def __str__(self) -> str:
        return "; ".join(self.lines)


class UserError(ProgramError):
    exit_code = 2


class Refusal(ProgramError):
    exit_code = 1


def together(errors: Sequence[ProgramError]) -> ProgramError:
    """Return one error with all problems of these, which ends a program as the first would alone."""
    kind = UserError if isinstance(errors[0], UserError) else Refusal
    return kind.of([each for error in errors for each in error.problems], sum(error.left_out for error in errors))


def first_lines(texts: Sequence[object], most: int = MOST_LINES, left_out: int = 0) -> tuple[str, ...]:
    """Return the first of the texts, and how many more there are, of these and of those left out before."""
    more = len(texts[most:]) + left_out
    return (*map(str, texts[:most]), *([f"and {more} more"] if more else []))


class Nonsense(ValueError):
    """A value is `wrong`, and the `fix`. Who reads the file that it is in knows its place, and makes a UserError of it.

    `wrong` goes after the path of a field, or after "it".
    """

    def __init__(self, wrong: str, fix: str) -> None:
        super().__init__(wrong, fix)
        self.wrong = wrong
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.wrong}; {self.fix}"
