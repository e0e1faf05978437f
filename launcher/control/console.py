"""The guest's serial port, on a terminal or in pipes; and QEMU's sockets, joined with file descriptors."""

import os
import select
import socket
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from program.errors import Refusal

#: The key that leaves the console, as in virsh console and telnet: Ctrl-].
ESCAPE = b"\x1d"

_READ = 1 << 16
_CONNECT = 5.0  # seconds for QEMU to accept a client


def attach(path: Path, source: int, sink: int) -> None:
    """Join the serial port's socket with two file descriptors until the guest ends.

    A terminal as `source` is raw meanwhile, and Ctrl-] leaves. The end of a pipe does not: the guest's output still
    goes to `sink`, until that is closed. Raise Refusal if QEMU does not serve the port.
    """
    with connected(path, "the guest's serial port cannot be reached") as port:
        if os.isatty(source):
            print("Connected to the guest's serial port; Ctrl-] leaves it.", file=sys.stderr)
        with _raw(source) as escape:
            join(port, source, sink, escape)


def connected(path: Path, wrong: str) -> socket.socket:
    """Connect to a socket of QEMU's; raise Refusal, which says what is `wrong`, if that fails."""
    qemu = socket.socket(socket.AF_UNIX)
    try:
        qemu.settimeout(_CONNECT)
        qemu.connect(str(path))
        qemu.settimeout(None)
    except OSError as error:
        qemu.close()
        raise Refusal(
            path,
            f"{wrong}: {error.strerror or 'QEMU takes nobody'}",
            "expected to be in the container of gpu-launcher run, and the guest to run",
        ) from error
    return qemu


@contextmanager
def _raw(terminal: int) -> Iterator[bytes]:
    """Make the terminal raw, so that every key goes to the guest; yield the key that leaves, b"" without a terminal."""
    if not os.isatty(terminal):
        yield b""
        return
    before = termios.tcgetattr(terminal)
    tty.setraw(terminal, termios.TCSANOW)
    try:
        yield ESCAPE
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)


def join(port: socket.socket, source: int, sink: int, escape: bytes = b"", *, ends_with_source: bool = False) -> None:
    """Copy from the file descriptor `source` to the port, and from the port to the file descriptor `sink`, until the
    port or the sink is closed; or until `escape`, if not empty, is read, or the source ends, if `ends_with_source`.
    """
    poll = select.poll()
    poll.register(sink, 0)  # asks for nothing, and is told when its reader is gone
    poll.register(source, select.POLLIN)
    poll.register(port, select.POLLIN)
    typed = b""  # what the guest has not taken yet
    while True:
        ready = dict(poll.poll())
        if sink in ready:
            return
        if source in ready:
            poll.unregister(source)
            typed = _read(source)
            if not typed and ends_with_source:
                return
            left, separator, _ = typed.partition(escape) if escape else (typed, b"", b"")
            if separator:
                port.sendall(left)
                return
            if typed:
                poll.modify(port, select.POLLIN | select.POLLOUT)
        if ready.get(port.fileno(), 0) & select.POLLOUT:
            typed = typed[port.send(typed, socket.MSG_DONTWAIT) :]
            if not typed:
                poll.modify(port, select.POLLIN)
                poll.register(source, select.POLLIN)
        if ready.get(port.fileno(), 0) & ~select.POLLOUT:
            heard = port.recv(_READ)
            if not heard or not _written(sink, heard):
                return


def _read(source: int) -> bytes:
    """Read the available bytes; b"" at the end, which an error of a terminal that has gone away also is."""
    try:
        return os.read(source, _READ)
    except OSError:
        return b""


def _written(sink: int, data: bytes) -> bool:
    """Write all the data; return whether the sink still has a reader."""
    try:
        while data:
            data = data[os.write(sink, data) :]
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True
