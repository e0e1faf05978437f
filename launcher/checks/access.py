"""Whether a file, a directory or a device can be opened: by trying, since neither modes nor capabilities tell what a
container's device cgroup allows (cgroups(7)). Opening a VFIO group or /dev/kvm does nothing to it."""

import errno
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

#: The kernel's number for what went wrong; None for what can be opened.
Outcome = int | None


def opened(path: Path, *, writing: bool = True) -> Outcome:
    """Open it and close it again."""
    try:
        os.close(os.open(path, (os.O_RDWR if writing else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return error.errno or errno.EIO
    return None


def tried(directory: Path, names: Iterable[str]) -> Mapping[str, Outcome]:
    """What comes of opening these, by their name below the directory, for reading and writing."""
    return {name: opened(directory / name) for name in names}


def is_missing(outcome: Outcome) -> bool:
    return outcome in (errno.ENOENT, errno.ENOTDIR)


def because(outcome: int) -> str:
    """`Permission denied`."""
    return os.strerror(outcome)
