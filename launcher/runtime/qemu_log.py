"""What QEMU says, line by line in our log as it comes: libvirt has it write to a file, which nobody reads in a pod."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inotify_simple import INotify, flags

from program.errors import Refusal
from program.problem import one_line

_log = logging.getLogger(__name__)

_PIECE = 1 << 16  # bytes that are read at once
_LINE = 1 << 15  # bytes; what a line has more is left out. Libvirt's first one, QEMU's arguments, has some 10 KiB
_FILE = 1 << 24  # bytes, with which the file is emptied: a guest may make its QEMU write for ever
_LAST_WORDS = 5.0  # seconds for what is there at the end


@contextmanager
def repeated(root: Path, domain: str) -> Iterator[None]:
    """What comes within to the domain's log below the embedded driver's root is logged, with QEMU before each line.

    The file stays, also for libvirt, which quotes it when a start fails.
    """
    path = root / "log" / "qemu" / f"{domain}.log"
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


def _repeat(tail: "_Tail", inotify: INotify) -> None:
    ended = False
    while not ended:
        ended = any(event.mask & flags.IGNORED for event in inotify.read())
        for line in tail.lines():
            _say(line)
    if tail.unfinished:
        _say(tail.unfinished)


def _say(line: bytes) -> None:
    words = one_line(line[:_LINE].decode(errors="replace"))
    _log.info("QEMU: %s%s", words, " ... (a longer line)" if len(line) > _LINE else "")


class _Tail:
    """What comes to the end of a file from now on; what is kept of it is bounded."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._position = os.fstat(file).st_size
        #: The beginning of a line whose end has not come yet.
        self.unfinished = b""

    def lines(self) -> Iterator[bytes]:
        """Each whole line that has come, cut a byte after _LINE; but for what is unread when the file is too large."""
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
