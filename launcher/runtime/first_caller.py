"""A server that sleeps until its first caller: until then it costs a socket and a sleeping thread, and the modules that
it needs are imported for that caller.
"""

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from program.errors import Refusal

_log = logging.getLogger(__name__)

_AGAIN = 1.0  # seconds until the next try, after a caller could not be served
_ENDING = 2.0  # seconds for the serving thread to end; the process does not wait longer


@contextmanager
def serving_on_demand(
    listener: socket.socket, place: object, name: str, serve: Callable[[int], None]
) -> Iterator[None]:
    """Have a thread call `serve` at the first caller, with an eventfd. `serve` returns once the eventfd is written to,
    at the end of the block. `name` is the server's in the log; `place` is where it listens. Refusal if there can be no
    thread.
    """
    end = os.eventfd(0, os.EFD_CLOEXEC)

    def sleep() -> None:
        woken = select.poll()
        woken.register(end, select.POLLIN)
        woken.register(listener, select.POLLIN)
        while end not in dict(woken.poll()):
            try:
                serve(end)
            except Exception as error:  # no memory for the imports, no descriptor for the event loop
                _log.error("%s cannot serve a caller: %s: %s", name, type(error).__name__, error)
                with suppress(OSError):
                    listener.accept()[0].close()
                time.sleep(_AGAIN)

    thread = threading.Thread(target=sleep, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        os.close(end)
        fix = "expected room for one more in the container's limits of processes and memory"
        raise Refusal(place, f"cannot have a thread to serve it: {error}", fix) from error
    try:
        yield
    finally:
        os.eventfd_write(end, 1)
        thread.join(_ENDING)
        if not thread.is_alive():
            os.close(end)
