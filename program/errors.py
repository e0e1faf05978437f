"""What can go wrong in a program, as one tree.

ProgramError
├── UserError     a manifest, a variable, a config or a flag of the user's: exit code 2
└── Refusal       libvirt, the kubelet, sysfs or the state of the node says no: exit code 1
"""

from program.problem import Problem


class ProgramError(Exception):
    """Carries a Problem, or several that have to be solved together; as text it is their one line."""

    exit_code = 1

    def __init__(self, subject: object, wrong: str, fix: str, *more: Problem) -> None:
        super().__init__(subject, wrong, fix, *more)
        self.problem = Problem(str(subject), wrong, fix)
        self.problems = (self.problem, *more)

    def __str__(self) -> str:
        return "; ".join(map(str, self.problems))


class UserError(ProgramError):
    exit_code = 2


class Refusal(ProgramError):
    exit_code = 1


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
