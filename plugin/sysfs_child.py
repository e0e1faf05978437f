"""Reads sysfs in a separate process, since the kernel may never answer.

From mid-2024 to Linux 6.15, and in stable kernels of that time, a read of a function's `uevent` waits for the device's
lock (uevent_show in drivers/base/core.c). A driver that has to release a device of a running guest holds that lock
until the guest ends. The same holds for `driver_override` in every kernel, and a driver's own files may wait for
anything. No signal reaches a process that waits there.

The reading process notes each file that it opens on a page that it shares with the waiting one. If it makes no progress
for PATIENCE, it is left behind, and another one reads everything but that file, which is Silent.
"""

import mmap
import os
import signal
import struct
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from sys import addaudithook
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

from pci.sysfs.attribute import SHORTAGES, CannotLook, Silent, Unreadable
from program.child import forked, let_go_of_standard_files, pickled, readable, unpickled
from program.errors import Refusal

#: Seconds in one file before the kernel counts as silent. It answers in microseconds, on a node that is short of memory
#: perhaps in a second or two.
PATIENCE = 5.0
#: Seconds for a process that could run, but gets no processor.
PATIENCE_WITHOUT_PROCESSOR = 30.0
#: Seconds between two looks at the reading process's progress.
TICK = 0.2
#: The most silent files, each with a process left behind; with more, no questions are asked.
MOST_SILENT = 16

_PAGE = 8192
_HEAD = struct.Struct("=IQH")  # the process that reads; how many files it has opened; the length of the last one's path
_CHUNK = 1 << 20

P = ParamSpec("P")
T = TypeVar("T")


def ask(
    read: Callable[Concatenate[Path, P], T], sys: Path, *arguments: P.args, **named: P.kwargs
) -> tuple[T, tuple[str, ...]]:
    """Call `read` with the tree `sys` in another process. Return its result and the files for which the kernel did not
    answer, or raise its exception. For these files `read` gets Silent.

    Refusal if there are more than MOST_SILENT of them. Call this while the process has one thread: a fork copies no
    other.
    """
    silent: list[str] = []
    call = partial(read, sys, *arguments, **named)
    while True:
        with refused(sys), closing(Question()) as question:
            try:
                answering = partial(answer, question.writer, question.page, sys, silent, call)
                child = forked("the process that reads", answering)
            except OSError as error:
                raise _shortage(error) from None
            question.sent()
            try:
                question.wait()
            except Silent as unanswered:
                silent.append(unanswered.fault.path)
                require_few(silent)
                continue
            finally:
                child.end()
            value: T = question.answer()
            return value, tuple(silent)


@contextmanager
def refused(sys: Path) -> Iterator[None]:
    """Turn CannotLook into a Refusal that names `sys`."""
    try:
        yield
    except CannotLook as error:
        raise Refusal(*error.words(sys)) from error


@contextmanager
def read_or_refused(sys: Path) -> Iterator[None]:
    """Turn Unreadable into a Refusal that names the file below `sys`."""
    try:
        yield
    except Unreadable as unreadable:
        fault = unreadable.fault
        raise Refusal(sys / fault.path, fault.wrong, "for a bug report: gpu-plugin record DIR") from unreadable


class Question:
    """A pipe for the answer of a reading process, and a page on which that process notes the files that it opens.

    `writer` and `page` are for the reading process.
    """

    def __init__(self) -> None:
        """Raise CannotLook if this process can open no more files, or the node has no more memory."""
        with ExitStack() as ours, ExitStack() as theirs:
            try:
                self.reader, self.writer = os.pipe()
                ours.callback(os.close, self.reader)
                theirs.callback(os.close, self.writer)
                self.page = os.memfd_create("opened")
                theirs.callback(os.close, self.page)
                os.ftruncate(self.page, _PAGE)
                self._notes = ours.enter_context(mmap.mmap(self.page, _PAGE))
            except OSError as error:
                raise _shortage(error) from None
            self._ours, self._theirs = ours.pop_all(), theirs.pop_all()
        self._pickled = bytearray()
        self._opened, self._since = 0, time.monotonic()

    @property
    def pid(self) -> int:
        """The ID of the reading process; 0 before it has begun."""
        pid: int = _HEAD.unpack_from(self._notes)[0]
        return pid

    def sent(self) -> None:
        """Close the files that only the reading process needs."""
        self._theirs.close()

    def close(self) -> None:
        self._theirs.close()
        self._ours.close()

    def wait(self) -> None:
        """Wait for the answer; Silent if the reading process makes no progress."""
        while True:
            if not readable([self.reader], TICK):
                self.require_progress()
            elif self.receive():
                return

    def receive(self) -> bool:
        """Read a part of the answer; return True at its end."""
        chunk = os.read(self.reader, _CHUNK)
        self._pickled += chunk
        return not chunk

    def require_progress(self) -> None:
        """Raise Silent if the reading process has read one file for PATIENCE, CannotLook if it gets no processor."""
        now = time.monotonic()
        pid, opened, length = _HEAD.unpack_from(self._notes)
        if opened != self._opened:
            self._opened, self._since = opened, now
        elif now - self._since > PATIENCE:
            if opened and not _could_run(pid):
                raise Silent(os.fsdecode(self._notes[_HEAD.size : _HEAD.size + length]))
            if now - self._since > PATIENCE_WITHOUT_PROCESSOR:
                wrong = "cannot be read: the process that reads gets no processor"
                raise CannotLook("", wrong, "see what else keeps the node busy")

    @property
    def has_answer(self) -> bool:
        return bool(self._pickled)

    def answer(self) -> Any:
        """Return the value that was received, or raise the received exception."""
        killed = CannotLook("", "cannot be read: the process that read was killed", _WHY_IT_ENDED)
        return unpickled(self._pickled, otherwise=killed)


_WHY_IT_ENDED = "see whether the node or the container is short of memory, or may have no more processes"


def _shortage(error: OSError) -> CannotLook:
    return CannotLook("", f"cannot be read: {error.strerror}", SHORTAGES.get(error.errno or 0, _WHY_IT_ENDED))


def _could_run(pid: int) -> bool:
    """True if the process only waits for a processor (state R: proc_pid_stat(5))."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"R"
    except OSError:
        return False


def require_few(silent: Collection[str]) -> None:
    """Raise CannotLook if the kernel is silent about more than MOST_SILENT files."""
    if len(silent) > MOST_SILENT:
        wrong = f"{Silent.WRONG} for {len(silent)} files: {', '.join(sorted(silent))}"
        raise CannotLook("", wrong, "look into the kernel's log; what hangs there ends with the node")


def answer(writer: int, page: int, sys: Path, silent: Collection[str], read: Callable[[], object]) -> NoReturn:
    """Call `read`, write its value or exception to `writer`, and end this process.

    The files that `read` opens are noted on `page`; the `silent` ones are not opened. Both are paths below `sys`.
    """
    try:
        for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, signal.SIG_DFL)
        notes = mmap.mmap(page, _PAGE)
        _let_go_of_all_but(writer)
        _note_what_is_opened(notes, f"{sys}/", silent)
        with os.fdopen(writer, "wb") as file:
            file.write(pickled(read))
    finally:
        os._exit(0)


def _let_go_of_all_but(descriptor: int) -> None:
    """Close every other file: if this process hangs, nobody waits in vain for an open file to be closed."""
    let_go_of_standard_files()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 (names are wanted)
        if int(name) not in (0, 1, 2, descriptor):
            with suppress(OSError):  # it was the listing's own
                os.close(int(name))


def _note_what_is_opened(notes: mmap.mmap, root: str, silent: Collection[str]) -> None:
    """From now on, note each file before this process opens it, and raise Silent instead of opening a silent one.

    Python calls its audit hooks before every open, and they may prevent it (PEP 578), so the readers need no change.
    """
    count, pid = 0, os.getpid()
    _HEAD.pack_into(notes, 0, pid, count, 0)

    def about_to(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event != "open" or isinstance(arguments[0], int):
            return
        path = os.fsdecode(arguments[0]).removeprefix(root)
        if path in silent:
            raise Silent(path)
        count += 1
        name = os.fsencode(path)[: _PAGE - _HEAD.size]
        notes[_HEAD.size : _HEAD.size + len(name)] = name
        _HEAD.pack_into(notes, 0, pid, count, len(name))

    addaudithook(about_to)
