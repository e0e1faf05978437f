"""Unix sockets as files."""

import errno
import socket
import stat
from contextlib import suppress
from pathlib import Path


def is_stale(path: Path) -> bool:
    """Return True for a socket on which nobody listens, as a killed program leaves it; OSError if that is unknown."""
    with suppress(FileNotFoundError), socket.socket(socket.AF_UNIX) as caller:
        caller.setblocking(False)  # a listener with a full queue is a listener too
        return stat.S_ISSOCK(path.lstat().st_mode) and caller.connect_ex(str(path)) == errno.ECONNREFUSED
    return False
