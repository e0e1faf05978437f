"""What a program does before anything else: which command is it called for, and may a signal come already?

It imports next to nothing: until hold() is called, a stop is lost or ends the program as the kernel does.
"""

import signal
from collections.abc import Callable, Sequence

STOPS = (signal.SIGTERM, signal.SIGINT)


def command_named(arguments: Sequence[str]) -> str:
    """Return the command that a command line names: its first argument, also behind a `--`; "" where there is none."""
    return next((argument for argument in arguments if argument != "--"), "")


def values_of(flag: str, arguments: Sequence[str]) -> list[str]:
    """Return the values of a flag, from --flag=VALUE and --flag VALUE, in their order; "" where no value follows.

    This is for a process that acts on a flag before a child of it reads the command line. It knows no other flags, so
    it misreads a value that looks like this flag (--name --user=1): the child has to compare.
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
    """Have SIGTERM, SIGINT and these wait from now on until somebody asks for them; the sooner the better.

    The kernel drops what process 1 of a namespace has no handler for (signal(7)), unless it is blocked: a SIGTERM that
    came while modules are still being imported would be lost, and the pod would start what it was told to end. Any
    other process would end with -15, and Python prints a traceback for SIGINT. What is forked holds them too.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {*STOPS, *others})


def hear(told: Callable[[], object], *signals: signal.Signals) -> None:
    """Have the running event loop call it at each of these, also at one that was held."""
    from asyncio import get_running_loop

    for signum in signals:
        get_running_loop().add_signal_handler(signum, told)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
