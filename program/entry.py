"""The end of a program: the one place that turns an error into its lines and an exit code."""

import os
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn

from program.errors import ProgramError
from program.problem import one_line


def ends_with(program: str, call: Callable[[], int | None], log: Callable[[], object] | None = None) -> NoReturn:
    """Call `call`, and end the process with the exit code that it returns, or that its error has.

    Each line of an error is printed after the name `program`. A program that has a log starts it by `log`: then the
    lines are the log's last records.
    """
    import gc
    from signal import SIG_DFL, SIGCHLD, signal

    signal(SIGCHLD, SIG_DFL)  # the parent may have set it to be ignored
    try:
        code = call()
        if sys.stdout is not None:  # closed from the start
            sys.stdout.flush()
        sys.exit(code)
    except ProgramError as error:
        _tell(program, error.lines, log)
        sys.exit(error.exit_code)
    except OSError as error:
        # Standard output is full or closed. Python would try to flush it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        subject = "cannot write" if error.filename is None else one_line(error.filename)
        _tell(program, [f"{subject}: {error.strerror}"], log)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        gc.freeze()  # else Python looks for garbage in all imported modules once more


def _tell(program: str, lines: Iterable[str], log: Callable[[], object] | None) -> None:
    if log is not None:
        log()
    from program.log import log_or_print  # a program without errors need not wait for logging

    for line in lines:
        log_or_print(program, line)
