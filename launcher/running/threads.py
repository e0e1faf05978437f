"""Starting threads, which a container's limits may forbid."""

from collections.abc import Iterator
from contextlib import contextmanager

from program.errors import Refusal


@contextmanager
def having_threads(what: str) -> Iterator[None]:
    """Raise Refusal if `what` cannot have the thread that is started within."""
    try:
        yield
    except RuntimeError as error:
        fix = "expected room for more of them in the container's limits of processes and memory"
        raise Refusal(what, f"cannot have a thread: {error}", fix) from error
