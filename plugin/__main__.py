"""Where gpu-plugin starts."""

import sys
from signal import SIGHUP

from program.bootstrap import command_named, hold

_serves = command_named(sys.argv[1:]) == "serve"
if _serves:
    hold(SIGHUP)

from typing import Any  # noqa: E402

from program.entry import ends_with  # noqa: E402


def main() -> None:
    ends_with("gpu-plugin", _serve if _serves else _command)


def _command() -> Any:
    """What the command returns that the command line names; None where it has just done something."""
    from plugin.cli import command_line
    from program.commands import called

    return called("gpu-plugin", command_line(sys.argv[1:]))


def _serve() -> int:
    """`serve` stays on its node, and so is a process without what read its command line."""
    from plugin.startup import ServeFlags, readied, start
    from program.child import forked

    child = forked("the process that reads the command line", _command)
    reader = readied()
    flags = child.answer()
    if not isinstance(flags, ServeFlags):
        return flags or 0
    start(flags, reader)
    return 0


if __name__ == "__main__":
    main()
