"""What the user gets on stderr: warnings, and all errors where there are several."""

import sys

from launcher.starting.start import Start
from program.errors import Refusal, UserError


def clear(start: Start) -> None:
    """Say the warnings, and raise what keeps the VM from starting.

    Where that are several errors, each is said, and what is raised ends the program as the first one would alone.
    """
    errors = start.errors
    if len(errors) > 1:
        for error in errors:
            say("error", error)
    for warning in start.warnings:
        say("warning", warning)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        kind = UserError if isinstance(errors[0], UserError) else Refusal
        raise kind("the VM", f"{len(errors)} things keep it from starting", "the lines above say each, with its fix")


def say(level: str, text: object) -> None:
    print(f"gpu-launcher: {level}: {text}", file=sys.stderr)
