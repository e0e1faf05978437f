"""The entry points: of kubectl-gpuvm, and of the program that kubectl calls to complete its words."""

import os
import shlex
import sys
from contextlib import suppress

from program.entry import ends_with

_NAME = "kubectl-gpuvm"


def main() -> None:
    from gpuvm.cli import command_line
    from program.commands import run_command

    ends_with(_NAME, lambda: run_command(_NAME, command_line(sys.argv[1:])))


def complete() -> None:
    """Print the possible next words, one a line, and cobra's directive to offer no files instead: kubectl calls
    `kubectl_complete-gpuvm WORD...`, the last word being what is typed so far."""
    from gpuvm.cli import command_line

    words = sys.argv[1:]
    os.environ["_KUBECTL_GPUVM_COMPLETE"] = "complete_bash"  # typer's protocol with bash
    os.environ["COMP_WORDS"] = shlex.join([_NAME, *words])
    os.environ["COMP_CWORD"] = str(len(words))
    with suppress(SystemExit):
        command_line(words)(prog_name=_NAME)
    print(":4")


if __name__ == "__main__":
    main()
