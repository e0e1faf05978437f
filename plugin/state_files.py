"""Files that tell a plugin what an earlier one did: written whole or not at all, by one process at a time."""

import asyncio
import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import IO

_TRIES_APART = 0.02  # seconds


def write_whole(path: Path, text: str, *, mode: int | None = None, sync: bool = False) -> None:
    """Replace a file so that whoever reads it finds all of it or none; with `sync` also after a crash of the node.

    `mode` is as for chmod(2), else as the umask has it. OSError if it cannot be done; the file is as before then, or
    new and perhaps not on the disk. Two at once write into the same new file: whoever is not alone needs a lock.
    """
    new = path.with_name(f"{path.name}.new")
    try:
        with new.open("w", encoding="utf-8") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(text)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        new.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    if sync:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


async def lock_within(file: IO[bytes], seconds: float) -> None:
    """Lock an open file, which keeps out who opens it anew and asks for it too; TimeoutError if it does not become free
    in so many seconds. It is free again once every copy of the descriptor is closed, a killed process's included:
    flock(2)."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError from None
            await asyncio.sleep(_TRIES_APART)
        else:
            return
