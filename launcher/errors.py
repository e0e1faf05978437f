"""The launcher's errors whose line of text is not yet split into subject, what is wrong and fix.

Who converts a raise site takes UserError or Refusal of program.errors; when none is left, this module goes.
"""

from program import errors
from program.errors import ProgramError as LauncherError

__all__ = ["LauncherError", "Refusal", "UserError"]


class UserError(errors.UserError):
    def __init__(self, line: str) -> None:
        super().__init__(*_parts(line))


class Refusal(errors.Refusal):
    def __init__(self, line: str) -> None:
        super().__init__(*_parts(line))


def _parts(line: str) -> tuple[str, str, str]:
    wrong, _, fix = line.partition("; ")
    subject, colon, rest = wrong.partition(": ")
    return (subject, rest, fix) if colon else ("", wrong, fix)
