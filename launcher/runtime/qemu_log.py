"""Copies what QEMU prints into our log. libvirt has QEMU write into a file, which nobody reads in a pod."""

import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inotify_simple import INotify, flags

from program.errors import Refusal
from program.problem import one_line

_log = logging.getLogger(__name__)

_PIECE = 1 << 16  # bytes that are read at once
_LINE = 1 << 15  # bytes of a line; the rest is left out. QEMU's arguments, which libvirt writes first, have 10 KiB
_FILE = 1 << 24  # bytes, from which on the file is emptied: a guest may make its QEMU write for ever
_LIBVIRTS = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\+0000: ")  # the beginning of libvirt's own lines
_STARTING = re.compile(_LIBVIRTS.pattern + b"starting up libvirt version: ")
_LAST_WORDS = 5.0  # seconds for what is there at the end


@contextmanager
def repeated(root: Path, domain: str) -> Iterator[None]:
    """Log each line of the domain's log below the embedded driver's root, marked as QEMU's; libvirt's line with QEMU's
    command is logged for debugging only. The file stays: libvirt quotes it when a start fails.
    """
    path = _path(root, domain)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Refusal(path, f"cannot open the log for QEMU: {error.strerror}", "expected a place to write") from error
    with INotify() as inotify:
        watch = inotify.add_watch(path, flags.MODIFY)
        reader = threading.Thread(target=_repeat, args=(_Tail(file), inotify), daemon=True)
        reader.start()
        try:
            yield
        finally:
            inotify.rm_watch(watch)  # which is the reader's last event
            reader.join(_LAST_WORDS)
    if not reader.is_alive():
        os.close(file)


def printed(root: Path, domain: str) -> str:
    """Return the last 64 KiB of what QEMU has printed since libvirt last started it; "" if the file cannot be read."""
    try:
        text = _path(root, domain).read_bytes()[-_PIECE:]
    except OSError:
        return ""
    # Before it, libvirt has written QEMU's command, where a backslash ends each line but the last.
    lines = text.rpartition(b" \\\n")[2].splitlines()[1:]
    return b"\n".join(line for line in lines if not _LIBVIRTS.match(line)).decode(errors="replace")


def _path(root: Path, domain: str) -> Path:
    return root / "log" / "qemu" / f"{domain}.log"


def _repeat(tail: "_Tail", inotify: INotify) -> None:
    ended, lines = False, _Lines()
    while not ended:
        ended = any(event.mask & flags.IGNORED for event in inotify.read())
        for line in tail.lines():
            lines.take(line)
    if tail.unfinished:
        lines.take(tail.unfinished)


class _Lines:
    """Logs lines as they come. libvirt writes a line about the start of QEMU, then QEMU's command, in which each line
    but the last ends with a backslash."""

    def __init__(self) -> None:
        self._command: bytes | None = None  # as far as it has come

    def take(self, line: bytes) -> None:
        if self._command is None:
            self._command = b"" if _STARTING.match(line) else None
            _say(logging.INFO, line)
            return
        self._command = (self._command + line.removesuffix(b"\\"))[: _LINE + 1]
        if not line.endswith(b" \\"):
            _say(logging.DEBUG, self._command)
            self._command = None


def _say(level: int, line: bytes) -> None:
    words = one_line(line[:_LINE].decode(errors="replace"))
    _log.log(level, "QEMU: %s%s", words, " ... (a longer line)" if len(line) > _LINE else "")


class _Tail:
    """Reads what is appended to a file from now on, with bounded memory."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._position = os.fstat(file).st_size
        #: The beginning of a line whose end has not come yet.
        self.unfinished = b""

    def lines(self) -> Iterator[bytes]:
        """Yield each whole line, cut one byte after _LINE. If the file gets too large, its unread part is left out."""
        while True:
            size = os.fstat(self._file).st_size
            if size < self._position:
                self._position = 0  # libvirt empties it before a start, where it is not root
            if size > _FILE:
                os.ftruncate(self._file, 0)
                if lost := size - self._position:
                    yield f"({lost} bytes are left out, it writes too much)".encode()
                self._position = 0
            piece = os.pread(self._file, _PIECE, self._position)
            if not piece:
                return
            self._position += len(piece)
            *lines, rest = (self.unfinished + piece).split(b"\n")
            self.unfinished = rest[: _LINE + 1]
            yield from lines
