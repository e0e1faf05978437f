"""Files that record a plugin's work for a later one: one reader, one writer, and one lock.

A file has a frozen dataclass as JSON. pydantic reads it, and refuses anything else. pydantic is imported with the first
file that exists: it costs 0.1 s of a processor and 6 MB, which most daemons never need. asyncio is imported by daemons
alone: it would be a seventh of the start of `gpu-plugin bind`.

A field that a version adds has a default, for the files of older versions. An unknown field is a newer version's, and
is refused by its name: a plugin does not act on a file that it half understands.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from program.errors import Refusal

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

#: The fix if a file below the directory of --state cannot be read or written.
STATE_FIX = "run as root, or name a directory with --state"

_LONGEST = 1 << 20  # bytes
_SHOWN = 100  # characters of a field or an error
_TRIES_APART = 0.02  # seconds

_BOOT = re.compile(rb'"boot"\s*:\s*"([^"\\]*)"')
_NEWER = "use the version of gpu-plugin that wrote it; or"


class Busy(Refusal):
    """Another process has the lock."""


class Broken(Refusal):
    """A state file cannot be read, or differs from what was written."""


class Lost(Broken):
    """A state file is empty, ends too early or names no boot, as a crash of the node leaves it."""


class NewerVersion(ValueError):
    """The file has a thing, `the field 'later'`, that this version does not know."""

    def __init__(self, what: str) -> None:
        super().__init__(f"it has {what}, which this version does not know")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFile(Generic[T]):
    """A file with one value, which `of` makes from the file's text.

    `wrong` and `fix` are the error's for malformed contents, `place` is the fix if the file cannot be read or written.
    `mode` is as for chmod(2), None for the umask's. `boot` is the ID of this boot if a boot makes the value void, else
    None; the file's dataclass then has a field `boot`.
    """

    path: Path
    of: Callable[[bytes], T]
    wrong: str
    fix: str
    place: str = STATE_FIX
    mode: int | None = None
    boot: str | None = None

    def read(self) -> T | None:
        """Return the value; None if there is no file, or if it is another boot's, whatever else is wrong with it. Lost
        if the contents are lost, Broken if the file cannot be read or is malformed."""
        text = b""
        try:
            text = _text(self.path)
            named = None if self.boot is None else _BOOT.search(text)
            if self.boot is not None and named is not None and named[1] != self.boot.encode():
                return None
            if len(text) > _LONGEST:
                raise ValueError(f"it is longer than {_LONGEST >> 20} MiB")
            if not text.strip(b"\0 \n"):
                self._refuse("it is empty", Lost)
            if self.boot is not None and named is None:
                self._refuse("it names no boot", Lost)
            return self.of(text)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise Broken(self.path, f"cannot be read: {error.strerror}", self.place) from error
        except (ValueError, RecursionError) as error:
            if _is_torn(text):
                # A crash of the node ends the boot that such a file names.
                self._refuse("it ends too early", Lost if self.boot is None else Broken)
            self._refuse(_reason(error), Broken, _NEWER if isinstance(error, NewerVersion) else "")

    def recover(self) -> T | None:
        """Return the value as `read` does, but None if it is lost: for a file without which nothing is removed."""
        try:
            return self.read()
        except Lost:
            return None

    def write(self, value: T) -> None:
        """Replace the file, whole or not at all, also after a crash of the node; on return it is on the disk. Refusal
        if it cannot be written."""
        write_json(self.path, value, self.place, mode=self.mode, sync=True)

    def remove(self) -> None:
        """Remove the file, if it exists; Refusal if it cannot be removed."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise Refusal(self.path, f"cannot be removed: {error.strerror}", self.place) from error

    def _refuse(self, reason: str, kind: type[Broken], first: str = "") -> NoReturn:
        raise kind(self.path, f"{self.wrong} ({reason})", f"{first} {self.fix}".strip()) from None


def _text(path: Path) -> bytes:
    """Return the text of a file, at most one byte more than the longest allowed; ValueError if it is no regular file: a
    link is not followed, a pipe not waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            raise ValueError("it is no regular file") from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no regular file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(_LONGEST + 1)
    finally:
        os.close(descriptor)


def _is_torn(text: bytes) -> bool:
    """Whether the text is the beginning of a JSON document, perhaps with zeros after it: XFS leaves such files."""
    text = text.rstrip(b"\0")
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            return False
    except (ValueError, RecursionError):
        return False
    else:
        return False
    from pydantic_core import from_json

    try:
        from_json(text, allow_partial="trailing-strings")
    except ValueError:
        return False
    return True


def _reason(error: Exception) -> str:
    """Return the error of a document in a few words."""
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError):
        return "it is no JSON"
    errors: Callable[..., list[Any]] | None = getattr(error, "errors", None)
    if errors is None:
        return str(error)
    first = errors(include_url=False, include_input=False)[0]  # of pydantic's ValidationError
    place = ".".join(map(str, first["loc"]))
    return f"{place[:_SHOWN]!a}: {first['msg'][:_SHOWN]}" if place else first["msg"][:_SHOWN]


def json_of(kind: type[T], *added: str) -> Callable[[bytes], T]:
    """Return a reader of JSON for a frozen dataclass or a mapping. The reader converts no value; ValueError if a field
    is missing, NewerVersion for an unknown field. `added` are fields with a default that older files lack."""

    def read(text: bytes) -> T:
        value: T = _adapter(kind).validate_json(text, strict=True)  # type: ignore[arg-type]
        _refuse_other_fields(json.loads(text), json.loads(json.dumps(value, default=asdict)), added)
        return value

    return read


def _refuse_other_fields(document: Any, known: Any, added: Collection[str]) -> None:
    """Compare a document with the fields read from it; ValueError as in `json_of`."""
    if isinstance(document, dict):
        for name in sorted(document.keys() - known.keys()):
            raise NewerVersion(f"the field {name!a}")
        for name in sorted(known.keys() - document.keys() - set(added)):
            raise ValueError(f"it lacks the field {name!a}")
        for name, each in document.items():
            _refuse_other_fields(each, known[name], added)
    elif isinstance(document, list):
        for each, its in zip(document, known, strict=True):
            _refuse_other_fields(each, its, added)


@cache
def _adapter(kind: Any) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def write_json(path: Path, value: object, place: str, *, mode: int | None = None, sync: bool = False) -> None:
    """Replace a file with a document or a dataclass as JSON, as write_text does."""
    write_text(path, json.dumps(value, indent=1, default=asdict) + "\n", place, mode=mode, sync=sync)


def write_text(path: Path, text: str, place: str, *, mode: int | None = None, sync: bool = False) -> None:
    """Replace a file, whole or not at all, with `sync` also after a crash of the node. Its directory is made.

    Refusal, with the fix `place`, if that fails; then the file is as before, or new and perhaps not on the disk. Hold a
    lock: two writers at once would use the same temporary file.
    """
    new = path.with_name(f"{path.name}.new")
    try:
        _make(path.parent)
        new.unlink(missing_ok=True)  # of a writer that was killed
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 (Path.open takes no descriptor)
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
    except OSError as error:
        raise Refusal(path, f"cannot be written: {error.strerror}", place) from error


def _make(path: Path) -> None:
    """Make a directory and those above it, with mode 755 under any umask."""
    for directory in (*reversed(path.parents), path):
        if not directory.is_dir():
            with contextlib.suppress(FileExistsError):
                directory.mkdir()
                directory.chmod(0o755)


@contextlib.contextmanager
def locked(path: Path, wrong: str, fix: str, place: str = STATE_FIX) -> Iterator[int]:
    """Lock this file against other processes, and yield its descriptor. Busy, with `wrong` and `fix`, if another has
    the lock; Refusal, with the fix `place`, if the directory cannot be written.

    The lock belongs to the open file: a child that inherits the descriptor has it too, until it ends (flock(2)).
    """
    try:
        _make(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise Refusal(path.parent, f"cannot be written: {error.strerror}", place) from error
    with open(descriptor, "rb+", buffering=0) as lock:  # noqa: PTH123 (Path.open takes no descriptor)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(path, wrong, fix) from None
        yield lock.fileno()


@contextlib.asynccontextmanager
async def locked_within(seconds: float, path: Path, fix: str, place: str = STATE_FIX) -> AsyncIterator[int]:
    """Lock as `locked` does, and wait for another process that has the lock; Busy after so many seconds."""
    import asyncio

    deadline, lock = time.monotonic() + seconds, None
    with contextlib.ExitStack() as stack:
        while lock is None:
            try:
                lock = stack.enter_context(locked(path, f"is held by another gpu-plugin for {seconds:g} s", fix, place))
            except Busy:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_TRIES_APART)
        yield lock


def boot_id(proc: Path) -> str:
    """Return the kernel's ID of this boot; empty if `proc` stands for no real /proc."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
