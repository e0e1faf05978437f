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
