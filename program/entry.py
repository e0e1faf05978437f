"""The end of a program: the one place that turns an error into its lines and an exit code."""

import os
import sys
from collections.abc import Callable
from typing import NoReturn

from program.errors import ProgramError
from program.problem import one_line


def ends_with(program: str, call: Callable[[], int | None]) -> NoReturn:
    """Call `call`, and end the process with the exit code that it returns, or with its error's. Each line on standard
    error begins with the name `program`."""
    from signal import SIG_DFL, SIGCHLD, signal

    signal(SIGCHLD, SIG_DFL)  # its parent may have had it ignore its children
    try:
        code = call()
        if sys.stdout is not None:  # closed from the start
            sys.stdout.flush()
        sys.exit(code)
    except ProgramError as error:
        for line in error.lines:
            print(f"{program}: {line}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        # Standard output that is full or closed. Python would try to flush it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        subject = "cannot write" if error.filename is None else one_line(error.filename)
        print(f"{program}: {subject}: {error.strerror}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
