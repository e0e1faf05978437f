"""Notes, warnings and errors on stderr: at most 25 lines in all, since nobody reads more."""

from collections.abc import Sequence

from launcher.manifest.parser import ParsedVM
from launcher.pipeline.start import Start
from program.errors import first_lines, together
from program.problem import MOST_LINES, Severity

_MOST_NOTES = 2
_LINES = 25


def report_findings(start: Start, parsed: ParsedVM) -> None:
    """Print the warnings, and raise what keeps the VM from starting. Of several errors, print each, and raise one that
    ends the program as the first of them would."""
    warnings = [parsed.located(finding.problem) for finding in start.warnings]
    errors = [error.changed(parsed.located) for error in start.errors]
    if not errors:
        say("warning", warnings)
        return
    all_of_them = together(errors)
    count = len(all_of_them.problems) + all_of_them.left_out
    if count == 1:
        say("warning", warnings)
        raise errors[0]
    say("error", all_of_them.problems[:MOST_LINES])
    shown = min(count, MOST_LINES)
    # Room for the last line, and for the notes, which have been printed.
    say("warning", warnings, max(0, _LINES - shown - 1 - (_MOST_NOTES + 1) - 1))
    more = f" (and {count - shown} more)" if count > shown else ""
    raise type(all_of_them)(
        "the VM", f"{count} things keep it from starting", f"the lines above say each, with its fix{more}"
    )


def say_notes(notes: Sequence[object]) -> None:
    say("note", notes, _MOST_NOTES)


def say(level: str, texts: Sequence[object], most: int = MOST_LINES) -> None:
    """Print a line for each of the first texts, and how many more there are. `level` is a severity's word."""
    if not texts:
        return
    from program.log import log_or_print  # `render` has nothing to say and need not wait for logging

    for line in first_lines(texts, most):
        log_or_print("gpu-launcher", line, Severity[level.upper()])
