"""The control socket: it is made, listened on, and removed. Its first caller waits for the server's imports."""

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from launcher.runtime.embedded import lock
from launcher.runtime.first_caller import serving_on_demand
from launcher.runtime.vm import VM
from program.errors import Refusal
from program.sockets import is_stale

_WAITING = 4096  # connections that are not taken yet, the kernel's most by default; a connect beyond them is refused
_LOCKED = 2.0  # seconds for other launchers, which need milliseconds, to see whether a socket is stale


@contextmanager
def serving_control(path: Path, vm: VM) -> Iterator[None]:
    """Serve calls about the VM on this socket, for this user and root, and remove the socket afterwards.

    Replace the socket of a killed launcher. Raise Refusal if a launcher serves there, the file is no socket, or no
    socket can be made.
    """

    def serve(end: int) -> None:
        import asyncio

        from launcher.control.server import serve

        asyncio.run(serve(listener, end, vm))

    with _directory(path), _listening(path) as listener, serving_on_demand(listener, path, "the control socket", serve):
        yield


def forget(path: Path) -> None:
    """Remove the socket that a killed launcher has left; keep one on which somebody listens."""
    with suppress(OSError, Refusal), _alone_in(path.parent):
        _remove_stale(path)


@contextmanager
def _directory(path: Path) -> Iterator[None]:
    """Make the socket's directory; afterwards remove the directories that were made here and are empty."""
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
    """Lock the directory, so that no other launcher takes the socket there for a stale one at the same time.
    TimeoutError if another process keeps it locked."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            lock(fd, _LOCKED)
        except BlockingIOError as error:
            raise TimeoutError(errno.ETIMEDOUT, f"{directory} is locked by another process") from error
        yield
    finally:
        os.close(fd)


def _remove_stale(path: Path) -> None:
    """Remove a socket on which nobody listens; Refusal if somebody does, or if the file is no socket."""
    if is_stale(path):
        path.unlink()
    elif os.path.lexists(path):
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
        serves = "another launcher serves there; a control socket is of one VM"
        raise _refusal(path, serves if is_socket else "something is there that is no socket, and stays")


def _refusal(path: Path, why: str) -> Refusal:
    return Refusal(path, why, "expected a place for the control socket, name another with --socket")
