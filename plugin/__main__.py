"""The entry point of gpu-plugin."""

import gc

# As in gpu-launcher: the imports make no garbage. `serve` turns collection on again.
gc.disable()

import sys  # noqa: E402
from signal import SIGHUP  # noqa: E402

from program.bootstrap import command_named, hold  # noqa: E402

_serves = command_named(sys.argv[1:]) == "serve"
if _serves:
    hold(SIGHUP)

from typing import Any  # noqa: E402

from program.entry import ends_with  # noqa: E402


def main() -> None:
    ends_with("gpu-plugin", _serve if _serves else _command, _log if _serves else None)


def _log() -> None:
    from plugin.device_plugin.logs import start

    start(sys.argv[1:])


def _command() -> Any:
    """Call the command that the command line names, and return its value: the flags of `serve`, or an exit code."""
    from plugin.cli import command_line
    from program.commands import run_command

    return run_command("gpu-plugin", command_line(sys.argv[1:]))


def _serve() -> int:
    """Serve without typer in this process's memory, since `serve` runs for long: a child reads the command line."""
    _log()
    from plugin.startup import ServeFlags, readied, start
    from program.child import forked

    child = forked("the process that reads the command line", _command)
    reader = readied()
    flags = child.answer()
    if not isinstance(flags, ServeFlags):
        return flags or 0
    gc.enable()
    start(flags, reader)
    return 0


if __name__ == "__main__":
    main()
