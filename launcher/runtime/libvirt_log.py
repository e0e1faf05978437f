"""Copies what libvirt and its C libraries print to this process's standard error into a log of JSON."""

import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from launcher.runtime.vm import having_threads
from program.log import json_handler
from program.problem import one_line

_log = logging.getLogger(__name__)

_LONGEST = 1 << 12  # bytes of a line; the rest is another line
_LIBVIRTS = re.compile(r"[-\d]+ [:.\d]+\+0000: \d+: (debug|info|warning|error) : (.*)")
_LAST_WORDS = 1.0  # seconds for what is there at the end


@contextmanager
def repeated() -> Iterator[None]:
    """Log each line that libvirt and its libraries print, marked as libvirt's, if the log is JSON. A log of text gets
    the lines directly, with libvirt's own time and level, so that the last words of a crashing library are not lost.
    """
    handler = json_handler()
    if handler is None:
        yield
        return
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
    handler.setStream(sys.stderr)
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(writer)
    thread = threading.Thread(target=_repeat, args=(reader,), daemon=True)
    with having_threads("libvirt's log"):
        thread.start()
    try:
        yield
    finally:
        os.dup2(sys.stderr.fileno(), 2)  # with nobody left to write, the reader ends
        thread.join(_LAST_WORDS)


def _repeat(reader: int) -> None:
    with open(reader, "rb") as lines:
        while line := lines.readline(_LONGEST):
            words = one_line(line.decode(errors="replace").rstrip("\n"))
            own = _LIBVIRTS.fullmatch(words)
            level, words = own.groups() if own else ("info", words)
            _log.log(getattr(logging, level.upper()), "libvirt: %s", words)
