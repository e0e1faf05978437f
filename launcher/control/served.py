"""The control socket: made, listened on, and gone afterwards.

Whoever asks nothing pays for a socket and a thread that sleeps: HTTP/2, protobuf and the services are imported when the
first caller comes.
"""

import errno
import fcntl
import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import Refusal
from launcher.running.vm import VM

if TYPE_CHECKING:
    from launcher.control.connection import Connection

_log = logging.getLogger(__name__)

_CALLERS = 32  # connections at once; whoever comes then waits
_LOCKED = 2.0  # seconds for other launchers, which need milliseconds, to look whether a socket is stale
_LAST_WORDS = 0.5  # seconds for callers to hear how it ended


@contextmanager
def served(path: Path, vm: VM) -> Iterator[None]:
    """The VM can be asked on this socket within. Only this user and root may; the socket is gone afterwards.

    What a killed launcher has left there is replaced. Refusal where a launcher serves there, where something else is
    there, or where no socket can be made.
    """
    with _directory(path), _listening(path) as listener:
        server = _Server(listener, vm)
        thread = threading.Thread(target=server.accept, name="control", daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.close()
            thread.join(_LAST_WORDS)


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
                listener.listen(_CALLERS)
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
    return Refusal(f"{path}: {why}; expected a place for the control socket, name another with --socket")


class _Server:
    def __init__(self, listener: socket.socket, vm: VM) -> None:
        self._listener = listener
        self._vm = vm
        self._free = threading.Semaphore(_CALLERS)
        self._lock = threading.Lock()
        self._closed = False
        self._connections: set[Connection] = set()

    def accept(self) -> None:
        """Serve who comes, until close()."""
        methods = None
        while True:
            self._free.acquire()
            try:
                peer, _ = self._listener.accept()
            except OSError as error:
                self._free.release()
                if self._closed:
                    return
                _log.error("the control socket could not take a caller: %s", error)
                time.sleep(_LAST_WORDS)
                continue
            from launcher.control.connection import Connection
            from launcher.control.services import methods_for

            methods = methods or methods_for(self._vm)
            connection = Connection(peer, methods)
            with self._lock:
                if self._closed:
                    peer.close()
                    return
                self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: "Connection") -> None:
        try:
            connection.serve()
        finally:
            with self._lock:
                self._connections.discard(connection)
            self._free.release()

    def close(self) -> None:
        """Take no more callers, and let those that are there hear the end of what they asked."""
        with self._lock:
            self._closed = True
            connections = list(self._connections)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        deadline = time.monotonic() + _LAST_WORDS
        for connection in connections:
            connection.finish(max(0.0, deadline - time.monotonic()))
