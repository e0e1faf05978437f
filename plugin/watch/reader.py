"""Reads sysfs in separate processes, for a daemon that goes on meanwhile.

The daemon cannot fork once it has grpc's threads. So it first forks one process that forks a process for each question
(plugin.sysfs_child has their work, and the reasons).
"""

import asyncio
import gc
import os
import pickle
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Concatenate, NoReturn, ParamSpec, TypeVar

from pci.sysfs.attribute import CannotLook, Silent
from plugin.sysfs_child import TICK, Question, answer, refused, require_few

_LONGEST = 1 << 17  # bytes of a question: a function of ours, and as many addresses as a node has
_ENDS_WITHIN = 0.1  # seconds from SIGKILL, where the kernel lets go

P = ParamSpec("P")
T = TypeVar("T")


class Reader:
    """Asks sysfs; lives in one event loop.

    A process to which the kernel does not answer is left behind, and until it ends, its file is Silent for all later
    questions. `is_lost`: the process that forks others has ended, and nothing can be asked any more.
    """

    def __init__(self, requests: socket.socket) -> None:
        """Send the questions through `requests` to a process in fork_for_each()."""
        self.is_lost = False
        self._left: dict[Question, str] = {}
        self._requests = requests
        self._requests.setblocking(False)

    @classmethod
    def forked(cls) -> "Reader":
        """Fork the process that forks others. Call this while this process has one thread."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The garbage collector writes to no frozen page, so these stay shared.
        gc.collect()
        gc.freeze()
        # Not program.child's: this process goes on to fork, for a daemon that cannot
        # (docs/decisions/0022-children-and-deadlines.md).
        if os.fork() == 0:
            ours.close()
            fork_for_each(theirs)
        theirs.close()
        return cls(ours)

    @contextmanager
    def listening(self, heard: Callable[[], None], lost: Callable[[], None]) -> Iterator[None]:
        """Call `heard` whenever the kernel has answered at last, and `lost` when nothing can be asked any more; end all
        processes at the end of the block."""
        loop = asyncio.get_running_loop()
        self._heard, self._when_lost = heard, lost
        loop.add_reader(self._requests, self._lose)
        try:
            yield
        finally:
            loop.remove_reader(self._requests)
            self._requests.close()  # which ends the process that forks others
            for question in list(self._left):
                self._end(question)

    async def ask(self, read: Callable[Concatenate[Path, P], T], sys: Path, *arguments: P.args, **named: P.kwargs) -> T:
        """Call `read` with the tree `sys` in another process, and return or raise its result; Refusal if nothing can be
        asked now."""
        call = partial(read, sys, *arguments, **named)
        with refused(sys):
            while True:
                require_few(self._left.values())
                question = Question()
                try:
                    self._send(pickle.dumps((call, sys, [*self._left.values()])), question)
                    await _answered(question)
                    value: T = question.answer()
                except Silent as unanswered:
                    self._left[question] = unanswered.fault.path
                    asyncio.get_running_loop().add_reader(question.reader, self._hear, question)
                except BaseException:
                    self._end(question)
                    raise
                else:
                    question.close()
                    return value

    async def forget_silence(self) -> None:
        """Let the next question read silent files again, except those whose process cannot be ended."""
        if self._left:
            for question in self._left:
                self._kill(question)
            await asyncio.sleep(_ENDS_WITHIN)

    def _send(self, request: bytes, question: Question) -> None:
        try:
            socket.send_fds(self._requests, [request], [question.writer, question.page])
        except OSError as error:
            wrong = f"cannot be read: the process that starts others for it does not take more: {error.strerror}"
            raise CannotLook("", wrong, "see whether the node is short of memory or processors") from None
        question.sent()

    def _hear(self, question: Question) -> None:
        """Receive the answer, or notice the end, of a process that was left behind."""
        if question.receive():
            is_answer = question.has_answer
            self._end(question)
            if is_answer:
                self._heard()

    def _end(self, question: Question) -> None:
        if self._left.pop(question, None) is not None:
            asyncio.get_running_loop().remove_reader(question.reader)
        self._kill(question)
        question.close()

    def _kill(self, question: Question) -> None:
        with suppress(OSError):  # the process that forks others has ended, and the others with it
            self._requests.send(pickle.dumps(question.pid))

    def _lose(self) -> None:
        asyncio.get_running_loop().remove_reader(self._requests)
        self.is_lost = True
        self._when_lost()


async def _answered(question: Question) -> None:
    """Wait for the answer; Silent if the reading process makes no progress."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(question.reader, readable.set)
    try:
        while True:
            try:
                async with asyncio.timeout(TICK):
                    await readable.wait()
            except TimeoutError:
                question.require_progress()
                continue
            readable.clear()
            if question.receive():
                return
    finally:
        loop.remove_reader(question.reader)


def fork_for_each(requests: socket.socket) -> NoReturn:
    """Fork a process for each question, and kill processes that the daemon names, until it closes its end."""
    children: set[int] = set()

    def take_leave(signum: int, frame: object) -> None:
        with suppress(ChildProcessError):
            while child := os.waitpid(-1, os.WNOHANG)[0]:
                children.discard(child)

    try:
        ignored = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
        for signum in ignored:
            signal.signal(signum, signal.SIG_IGN)  # it ends with the daemon
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ignored)  # for the processes that it forks
        signal.signal(signal.SIGCHLD, take_leave)
        gc.disable()  # also in the processes that it forks: they end soon
        while True:
            request, descriptors, _, _ = socket.recv_fds(requests, _LONGEST, 2)
            # No child may be reaped, and its ID used again, between the check of the set and the kill.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
            if not request:
                break
            if descriptors:
                with suppress(OSError):  # the daemon notices that the pipe is closed
                    children.add(_fork(request, *descriptors))
                for descriptor in descriptors:
                    os.close(descriptor)
            elif (child := pickle.loads(request)) in children:  # noqa: S301 (by this program)
                os.kill(child, signal.SIGKILL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
        os._exit(0)


def _fork(request: bytes, writer: int, page: int) -> int:
    child = os.fork()  # not program.child's: another process waits for the answer
    if child == 0:
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            read, sys, silent = pickle.loads(request)  # noqa: S301 (by this program)
            answer(writer, page, sys, silent, read)
        finally:
            os._exit(0)
    return child
