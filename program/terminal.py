"""What a terminal is given that a file is not: colours, and lines as wide as it is."""

import os
import shutil
from collections.abc import Mapping

from program.problem import Severity

#: Columns of what is printed, where no terminal says how many it has.
COLUMNS = 100

#: The colours of ECMA-48, as `ls` and `systemctl` use them.
_COLOURS = {Severity.ERROR: "1;31", Severity.WARNING: "1;33", Severity.NOTE: "36", Severity.OK: "32"}


def columns() -> int:
    """Return how many columns standard output has: its terminal's, COLUMNS of the environment, or else 100."""
    return shutil.get_terminal_size((COLUMNS, 24)).columns


def is_coloured(descriptor: int, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether what is written there is shown in colours: it is a terminal, and nobody has set NO_COLOR
    (https://no-color.org) or has a terminal without any."""
    return os.isatty(descriptor) and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def painted(text: str, severity: Severity, *, coloured: bool) -> str:
    """Return the text in the colour of a severity, or as it is."""
    return f"\x1b[{_COLOURS[severity]}m{text}\x1b[0m" if coloured else text
