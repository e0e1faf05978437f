"""Files that tell a plugin what an earlier one did: one reader, one writer, and one lock.

A file has a frozen dataclass as JSON. pydantic reads it, and refuses anything else. It is imported with the first file
that exists: it costs 0.1 s of a processor and 6 MB, which most daemons never need. asyncio is for daemons alone, and
would be a seventh of the start of `gpu-plugin bind`.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from program.errors import Refusal

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

#: The fix if a file below the directory of --state cannot be read or written.
STATE_FIX = "run as root, or name a directory with --state"

_LONGEST = 1 << 20  # bytes
_TRIES_APART = 0.02  # seconds


class Busy(Refusal):
    """Another process has the lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFile(Generic[T]):
    """A file with one value, which `of` makes of its text.

    `wrong` and `fix` are for a file with something else, `place` is the fix if it cannot be read or written. `mode` is
    as for chmod(2), None for the umask's; `sync` writes it to the disk at once, so as to outlive a crash of the node.
    """

    path: Path
    of: Callable[[bytes], T]
    wrong: str
    fix: str
    place: str = STATE_FIX
    mode: int | None = None
    sync: bool = True

    def read(self) -> T | None:
        """Return the value; None if there is no file. Refusal if it cannot be read, or holds something else."""
        try:
            with self.path.open("rb") as file:
                text = file.read(_LONGEST + 1)
            if len(text) > _LONGEST:
                raise ValueError("too long")
            return self.of(text)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise Refusal(self.path, f"cannot be read: {error.strerror}", self.place) from error
        except (ValueError, RecursionError):
            raise Refusal(self.path, self.wrong, self.fix) from None

    def write(self, value: T) -> None:
        """Replace the file, whole or not at all; Refusal if it cannot be written."""
        write_json(self.path, value, self.place, mode=self.mode, sync=self.sync)


def json_of(kind: type[T]) -> Callable[[bytes], T]:
    """Return a reader of JSON for a frozen dataclass or a mapping. It converts nothing; ValueError if a field is
    unknown or missing, even one with a default."""

    def read(text: bytes) -> T:
        value: T = _adapter(kind).validate_json(text, strict=True)  # type: ignore[arg-type]
        if json.loads(json.dumps(value, default=asdict)) != json.loads(text):
            raise ValueError("has other fields")
        return value

    return read


@cache
def _adapter(kind: Any) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def write_json(path: Path, value: object, place: str, *, mode: int | None = None, sync: bool = False) -> None:
    """Replace a file with a document or a dataclass as JSON, whole or not at all, with `sync` also after a crash of the
    node. Its directory is made.

    Refusal, with the fix `place`, if that fails; the file is as before then, or new and perhaps not on the disk. Hold a
    lock: two writers at once would use the same temporary file.
    """
    text, new = json.dumps(value, indent=1, default=asdict) + "\n", path.with_name(f"{path.name}.new")
    try:
        _make(path.parent)
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
        lock = path.open("ab")
    except OSError as error:
        raise Refusal(path.parent, f"cannot be written: {error.strerror}", place) from error
    with lock:
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
