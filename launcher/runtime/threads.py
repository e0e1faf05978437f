"""Threads, which a container's limits may refuse."""

from collections.abc import Iterator
from contextlib import contextmanager

from program.errors import Refusal


@contextmanager
def having_threads(what: str) -> Iterator[None]:
    """Refusal where there can be no more threads; `what` is to have one."""
    try:
        yield
    except RuntimeError as error:
        fix = "expected room for more of them in the container's limits of processes and memory"
        raise Refusal(what, f"cannot have a thread: {error}", fix) from error
