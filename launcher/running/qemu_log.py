"""What QEMU says, line by line in our log as it comes: libvirt has it write to a file, which nobody reads in a pod."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from inotify_simple import INotify, flags

from program.errors import Refusal
from program.problem import one_line

_log = logging.getLogger(__name__)


@contextmanager
def repeated(root: Path, domain: str) -> Iterator[None]:
    """What comes within to the domain's log below the embedded driver's root is logged, with QEMU before each line.

    The file stays, also for libvirt, which quotes it when a start fails.
    """
    path = root / "log" / "qemu" / f"{domain}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "a+b")
    except OSError as error:
        raise Refusal(path, f"cannot open the log for QEMU: {error.strerror}", "expected a place to write") from error
    with file, INotify() as inotify:
        watch = inotify.add_watch(path, flags.MODIFY)
        reader = threading.Thread(target=_repeat, args=(file, inotify), daemon=True)
        reader.start()
        try:
            yield
        finally:
            inotify.rm_watch(watch)  # which is the reader's last event
            reader.join()


def _repeat(file: BinaryIO, inotify: INotify) -> None:
    unfinished = b""
    ended = False
    while not ended:
        ended = any(event.mask & flags.IGNORED for event in inotify.read())
        *lines, unfinished = (unfinished + file.read()).split(b"\n")
        if ended and unfinished:
            lines.append(unfinished)
        for line in lines:
            _log.info("QEMU: %s", one_line(line.decode(errors="replace")))
