"""The guest's serial port, on the terminal or in a pipe."""

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

#: What leaves a terminal, as virsh console's and telnet's does: Ctrl-].
ESCAPE = b"\x1d"

_READ = 1 << 16


def attach(path: Path, source: int, sink: int) -> None:
    """Join the serial port's socket with these two file descriptors until the guest ends.

    A terminal as `source` is raw meanwhile, and Ctrl-] leaves it. The end of a pipe there does not end it: what the
    guest says goes on into `sink`, until that is closed. Refusal where nobody serves the port.
    """
    with socket.socket(socket.AF_UNIX) as port:
        try:
            port.connect(str(path))
        except OSError as error:
            raise Refusal(
                path,
                f"the guest's serial port cannot be reached: {error.strerror}",
                "expected to be in the container of gpu-launcher run, and the guest to run",
            ) from error
        if os.isatty(source):
            print("Connected to the guest's serial port; Ctrl-] leaves it.", file=sys.stderr)
        with _raw(source) as escape:
            join(port, source, sink, escape)


@contextmanager
def _raw(terminal: int) -> Iterator[bytes]:
    """Every key goes to the guest within; yields the one that doesn't. Nothing where it is no terminal."""
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
    """Carry both ways until the port or the sink is closed, or `escape`, if not empty, is read, or, where that is to
    end it, until the source is at its end. `source` and `sink` are two descriptors."""
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
    """Nothing at its end: a terminal that has gone away ends in an error."""
    try:
        return os.read(source, _READ)
    except OSError:
        return b""


def _written(sink: int, data: bytes) -> bool:
    """Whether somebody still reads there."""
    try:
        while data:
            data = data[os.write(sink, data) :]
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True
