"""One attribute of sysfs at a time: a file's line, a link's target, a directory's names.

What exists and cannot be read raises Unreadable, which has its path.
"""

import errno
import os
import re
from pathlib import Path

from pci.host import Fault

#: What sysfs gives for one attribute at most. The limit keeps a broken tree from filling memory.
_PAGE = 4096


class Unreadable(Exception):
    """One attribute could not be read; carries its path below the sysfs root."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.fault = Fault(path, problem)


def text(sys: Path, path: str) -> str | None:
    """A file's text without the blanks around it; None where there is no such file."""
    try:
        # A file object costs three times what the read does, and a node has thousands.
        descriptor = os.open(f"{sys}/{path}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, _PAGE).decode("ascii").strip()
        finally:
            os.close(descriptor)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError:
        raise Unreadable(path, "holds binary data; expected text") from None
    except OSError as error:
        raise Unreadable(path, f"cannot be read: {error.strerror}") from None


def link(sys: Path, path: str) -> str | None:
    """Where a link points; None where there is no such entry."""
    try:
        return os.readlink(f"{sys}/{path}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        problem = "expected a link" if error.errno == errno.EINVAL else f"cannot be read: {error.strerror}"
        raise Unreadable(path, problem) from None


def link_name(sys: Path, path: str) -> str | None:
    """The last part of where a link points: the name of a driver, a group, a function."""
    target = link(sys, path)
    return None if target is None else target.rpartition("/")[2]


def names(sys: Path, directory: str) -> list[str]:
    """The names in a directory, sorted, since directory order is not an order; empty where it does not exist."""
    try:
        return sorted(os.listdir(f"{sys}/{directory}"))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise Unreadable(directory, f"cannot be read: {error.strerror}") from None


def number(sys: Path, path: str, pattern: str, expected: str) -> int | None:
    """A decimal number that fits the pattern; None where there is no such file."""
    found = text(sys, path)
    if found is None:
        return None
    if not re.fullmatch(pattern, found, re.ASCII):
        raise Unreadable(path, f"holds {found[:80]!r}; expected {expected}")
    return int(found)
