"""Where gpu-launcher starts: the one place that turns an error into a line and an exit code."""

import gc

# The imports make a quarter of a million objects and no garbage. Looking for some on the way, and again in all of them
# at the end, takes a third of the time of `render`. The part of `run` that stays turns collection on again.
gc.disable()

from launcher.running.supervise import hold_signals  # noqa: E402

hold_signals()

import os  # noqa: E402
import sys  # noqa: E402
from typing import Any  # noqa: E402

from launcher.errors import LauncherError, one_line  # noqa: E402


def main() -> None:
    try:
        code = _run() if sys.argv[1:2] == ["run"] else _command()
        if sys.stdout is not None:  # closed from the start
            sys.stdout.flush()
        sys.exit(code)
    except LauncherError as error:
        print(f"gpu-launcher: {one_line(error)}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.filename is not None:
            raise
        # Standard output that is full or closed. Python would try to flush it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        print(f"gpu-launcher: cannot write: {error.strerror}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        gc.freeze()


def _command() -> Any:
    """What the command returns that the command line names; None where it has just done something."""
    from click import ClickException

    from launcher.cli import command_line

    try:
        return command_line(sys.argv[1:])(standalone_mode=False)
    except ClickException as error:
        print(f"gpu-launcher: {one_line(error.format_message())} Try: gpu-launcher --help", file=sys.stderr)
        return error.exit_code


def _run() -> int:
    """`run` is three processes, forked before the imports that only the next one needs (docs/decisions/0022): this one
    stays to supervise, its worker stays with libvirt, and the worker's child makes the plan and ends."""
    from launcher.running.supervise import supervise
    from launcher.running.user import asked_for, become

    if (handover := asked_for(sys.argv[2:])) is not None:
        become(handover)
    place = os.memfd_create("plan")

    def work() -> int:
        from launcher.control.served import served
        from launcher.running.embedded import asked_for
        from launcher.running.worker import work

        return work(_command, place, asked_for(sys.argv[2:]), served)

    def tidy() -> None:
        from launcher.control.served import forget
        from launcher.running.worker import tidy

        tidy(place, forget)

    return supervise(work, tidy)


if __name__ == "__main__":
    main()
