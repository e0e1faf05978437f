"""The plugin's errors whose line of text is not yet split into subject, what is wrong and fix.

Who converts a raise site takes UserError or Refusal of program.errors; when none is left, this module goes.
"""

from program import errors
from program.errors import ProgramError as PluginError

__all__ = ["PluginError", "Refusal", "UserError"]


class UserError(errors.UserError):
    def __init__(self, line: str) -> None:
        super().__init__("", line, "")


class Refusal(errors.Refusal):
    def __init__(self, line: str) -> None:
        super().__init__("", line, "")
