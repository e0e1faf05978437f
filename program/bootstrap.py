"""The first steps of a program: it finds its command, and holds signals back until it can handle them.

This imports next to nothing: until hold() is called, a SIGTERM is lost or ends the program at once.
"""

import signal
from collections.abc import Callable, Sequence

STOPS = (signal.SIGTERM, signal.SIGINT)


def command_named(arguments: Sequence[str]) -> str:
    """Return the command that a command line names: its first argument other than `--`; "" if there is none."""
    return next((argument for argument in arguments if argument != "--"), "")


def values_of(flag: str, arguments: Sequence[str]) -> list[str]:
    """Return the values of a flag, from --flag=VALUE and --flag VALUE, in their order; "" if no value follows.

    For a process that acts on a flag before its child reads the command line. A value of another flag that looks like
    this flag (--name --user=1) is misread, so the child has to compare.
    """
    values: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if name == flag:
            values.append(value if equals else next(words, ""))
    return values


def hold(*others: signal.Signals) -> None:
    """Block SIGTERM, SIGINT and these from now on, for forked children too, until hear() unblocks them.

    The kernel drops a signal for which process 1 of a namespace has no handler (signal(7)), unless it is blocked: a
    SIGTERM during the imports would be lost, and the pod would go on. Any other process would end with -15, and Python
    prints a traceback for SIGINT.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {*STOPS, *others})


def hear(handler: Callable[[], object], *signals: signal.Signals) -> None:
    """Have the running event loop call `handler` at each of these signals, also at one that was held."""
    from asyncio import get_running_loop

    for signum in signals:
        get_running_loop().add_signal_handler(signum, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
