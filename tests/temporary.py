"""Where the tests' files are: in memory, where that may have programs and device nodes, unlike a container's /dev/shm.

A tree that stands for sysfs is some hundred files: on a disk, to make and remove them takes longer than the tests.
"""

import os
import tempfile
from pathlib import Path

_MEMORY = "/dev/shm"
_ROOM = 4 << 30


def _suits() -> bool:
    if not Path(_MEMORY).is_dir():
        return False
    there = os.statvfs(_MEMORY)
    return not there.f_flag & (os.ST_NOEXEC | os.ST_NODEV | os.ST_RDONLY) and there.f_bavail * there.f_frsize >= _ROOM


#: Short enough for sockets, which TMPDIR need not be.
SHORT = _MEMORY if _suits() else "/tmp"

os.environ.setdefault("TMPDIR", SHORT)
tempfile.tempdir = None  # pytest has asked for it before, to capture output in
