"""The control socket: made, listened on, and gone afterwards.

A VM that nobody asks pays for a socket and a thread that sleeps: asyncio, gRPC and the services are imported when the
first caller comes.
"""

import errno
import fcntl
import logging
import os
import select
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from launcher.runtime.vm import VM
from program.errors import Refusal

_log = logging.getLogger(__name__)

_WAITING = 100  # connections that are not taken yet, as when the first of them waits for the imports
_LOCKED = 2.0  # seconds for other launchers, which need milliseconds, to look whether a socket is stale
_AGAIN = 1.0  # seconds until the next try, where a caller could not be served
_ENDING = 2.0  # seconds for the thread that serves to end; the process does not wait for it


@contextmanager
def served(path: Path, vm: VM) -> Iterator[None]:
    """The VM can be asked on this socket within. Only this user and root may; the socket is gone afterwards.

    What a killed launcher has left there is replaced. Refusal where a launcher serves there, where something else is
    there, or where no socket can be made.
    """
    with _directory(path), _listening(path) as listener:
        end = os.eventfd(0, os.EFD_CLOEXEC)
        thread = threading.Thread(target=_serve, args=(listener, end, vm), name="control", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            os.close(end)
            fix = "expected room for one more in the container's limits of processes and memory"
            raise Refusal(path, f"cannot have a thread to serve it: {error}", fix) from error
        try:
            yield
        finally:
            os.eventfd_write(end, 1)
            thread.join(_ENDING)
            if not thread.is_alive():
                os.close(end)


def _serve(listener: socket.socket, end: int, vm: VM) -> None:
    """Sleep until somebody comes, and serve from then on; until the eventfd `end` is written to."""
    woken = select.poll()
    woken.register(end, select.POLLIN)
    woken.register(listener, select.POLLIN)
    while end not in dict(woken.poll()):
        try:
            import asyncio

            from launcher.control.server import serve

            asyncio.run(serve(listener, end, vm))
        except Exception as error:  # no memory for the imports, no descriptor for the event loop
            _log.error("the control socket cannot serve a caller: %s: %s", type(error).__name__, error)
            with suppress(OSError):
                listener.accept()[0].close()
            time.sleep(_AGAIN)


def forget(path: Path) -> None:
    """Take away the socket that a killed launcher has left there; one on which somebody listens stays."""
    with suppress(OSError, Refusal), _alone_in(path.parent):
        _remove_stale(path)


@contextmanager
def _directory(path: Path) -> Iterator[None]:
    """The socket's directory is there within; what was made of it goes again, if nobody else has put something in."""
    missing = [parent for parent in path.parents if not parent.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refusal(path, f"cannot make {error.filename}: {error.strerror}") from error
    try:
        yield
    finally:
        with suppress(OSError):
            for parent in missing:
                parent.rmdir()


@contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            with _alone_in(path.parent):
                _remove_stale(path)
                listener.bind(str(path))
                path.chmod(0o600)  # before listen(), so that nobody has come
                listener.listen(_WAITING)
                listener.setblocking(False)
        except OSError as error:
            words = error.strerror or str(error)  # a path that is too long has no number
            raise _refusal(path, f"cannot listen there: {words}") from error
        ours = path.stat().st_ino
        try:
            yield listener
        finally:
            with suppress(OSError):
                if path.stat().st_ino == ours:
                    path.unlink()


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """No other launcher looks at the socket there meanwhile, and takes it for a stale one too. TimeoutError where
    somebody else keeps the directory locked."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    deadline = time.monotonic() + _LOCKED
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise TimeoutError(errno.ETIMEDOUT, f"{directory} is locked by another process") from error
                time.sleep(0.01)
        yield
    finally:
        os.close(fd)


def _remove_stale(path: Path) -> None:
    """Remove a socket on which nobody listens. Refusal where somebody does, and where it is none."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise _refusal(path, "something is there that is no socket, and stays")
    with socket.socket(socket.AF_UNIX) as caller:
        caller.setblocking(False)  # a listener whose queue is full is one, too
        code = caller.connect_ex(str(path))
    if code != errno.ECONNREFUSED:
        raise _refusal(path, "another launcher serves there; a control socket is of one VM")
    path.unlink()


def _refusal(path: Path, why: str) -> Refusal:
    return Refusal(path, why, "expected a place for the control socket, name another with --socket")
