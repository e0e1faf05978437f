"""Reads one attribute of sysfs at a time: a file's line, a link's target, a directory's names.

An entry that exists and cannot be read raises Unreadable, with its path. A driver answers a file's reader, perhaps
never: a caller that cannot wait reads in a child (plugin.sysfs_child). The kernel itself answers for links and
directories.
"""

import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path

from pci.host import Fault

DEVICES = "bus/pci/devices"

#: The most that sysfs gives for one attribute. The limit keeps a broken tree from filling memory.
_PAGE = 4096

#: Errors that say nothing about the file, since the reading process lacks something; and what to do about each.
SHORTAGES = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the sysctl fs.file-max, or end what has so many files open",
    errno.ENOMEM: "free memory of the node, or raise the container's limit",
}
#: The same for listing a directory: the kernel does that without a driver, so EIO says nothing about a device.
NO_LISTS = {**SHORTAGES, errno.EIO: "the kernel's log may say why"}


class Unreadable(Exception):
    """One attribute could not be read; `fault` has its path below the root of sysfs."""

    def __init__(self, path: str, wrong: str) -> None:
        super().__init__(path, wrong)
        self.fault = Fault(path, wrong)

    def __str__(self) -> str:
        return str(self.fault)


class Silent(Unreadable):
    """The kernel did not answer a read in time."""

    WRONG = "the kernel did not answer"

    def __init__(self, path: str) -> None:
        super().__init__(path, self.WRONG)
        self.args = (path,)  # pickle makes the error again from these


class CannotLook(Unreadable):
    """Nothing can be read from this tree now, so a caller keeps what it read before; `fix` says what to do."""

    def __init__(self, path: str, wrong: str, fix: str) -> None:
        super().__init__(path, wrong)
        self.args = (path, wrong, fix)
        self.fix = fix

    def words(self, sys: Path) -> tuple[Path, str, str]:
        """Return the three parts of a Problem: the file in the tree `sys`, what is wrong with it, and the fix."""
        return sys / self.fault.path, self.fault.wrong, self.fix


def content(sys: Path, path: str, most: int = _PAGE) -> bytes:
    """Read at most so many bytes of a file; OSError if it does not exist or cannot be read."""
    # A file object costs three times what the read does, and a node has thousands.
    descriptor = os.open(f"{sys}/{path}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, most)
    finally:
        os.close(descriptor)


def text(sys: Path, path: str) -> str | None:
    """Read a file's text, without the blanks around it. Return None if there is no such file."""
    try:
        return content(sys, path).decode("ascii").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError:
        raise Unreadable(path, "holds binary data; expected text") from None
    except OSError as error:
        raise unreadable(path, error) from None


def link(sys: Path, path: str) -> str | None:
    """Read where a link points. Return None if there is no such entry."""
    try:
        return os.readlink(f"{sys}/{path}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise Unreadable(path, "expected a link") from None
        raise unreadable(path, error) from None


def link_name(sys: Path, path: str) -> str | None:
    """Read the last part of where a link points: the name of a driver, a group, a function."""
    target = link(sys, path)
    return None if target is None else target.rpartition("/")[2]


def names(sys: Path, directory: str) -> list[str]:
    """Read the names in a directory, sorted, since directory order is not an order. Empty if it does not exist."""
    try:
        return sorted(os.listdir(f"{sys}/{directory}"))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise unreadable(directory, error, NO_LISTS) from None


def number(sys: Path, path: str, pattern: str, expected: str) -> int | None:
    """Read a decimal number that fits the pattern. Return None if there is no such file."""
    digits = text(sys, path)
    if digits is None:
        return None
    if not re.fullmatch(pattern, digits, re.ASCII):
        raise Unreadable(path, f"holds {digits[:80]!r}; expected {expected}")
    return int(digits)


def unreadable(path: str, error: OSError, of_all: Mapping[int, str] = SHORTAGES) -> Unreadable:
    """Return what the error means: Unreadable for this entry, or CannotLook for an error in `of_all`."""
    wrong = f"cannot be read: {error.strerror}"
    fix = of_all.get(error.errno or 0)
    return Unreadable(path, wrong) if fix is None else CannotLook(path, wrong, fix)
