"""Colours and the width of a terminal."""

import os
import shutil
from collections.abc import Mapping

from program.problem import Severity

#: The width of the output if there is no terminal.
COLUMNS = 100

#: The colours of ECMA-48, as `ls` and `systemctl` use them.
_COLOURS = {Severity.ERROR: "1;31", Severity.WARNING: "1;33", Severity.NOTE: "36", Severity.OK: "32"}


def columns() -> int:
    """Return the width of standard output: the terminal's, COLUMNS of the environment, or else 100."""
    return shutil.get_terminal_size((COLUMNS, 24)).columns


def is_coloured(descriptor: int, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the descriptor is a terminal with colours, and NO_COLOR is not set (https://no-color.org)."""
    return os.isatty(descriptor) and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def painted(text: str, severity: Severity, *, coloured: bool) -> str:
    """Return the text in the colour of a severity, or as it is."""
    return f"\x1b[{_COLOURS[severity]}m{text}\x1b[0m" if coloured else text
