"""What can go wrong in a program, as one tree.

ProgramError
├── UserError     a manifest, a variable, a config or a flag of the user's: exit code 2
└── Refusal       libvirt, the kubelet, sysfs or the state of the node says no: exit code 1
"""

from program.problem import Problem


class ProgramError(Exception):
    """Carries a Problem; as text it is the problem's one line."""

    exit_code = 1

    def __init__(self, subject: object, wrong: str, fix: str) -> None:
        super().__init__(subject, wrong, fix)
        self.problem = Problem(str(subject), wrong, fix)

    def __str__(self) -> str:
        return str(self.problem)


class UserError(ProgramError):
    exit_code = 2


class Refusal(ProgramError):
    exit_code = 1
