"""Child processes: a call in a fork of this process, a call in a new Python, or a program.

A call returns its value, or raises its exception, in this process. An answer has at most MOST bytes. A late child is
killed; if the kernel does not let it go, it is left behind, and the error has its process ID.
docs/decisions/0022-children-and-deadlines.md lists the modules that start processes themselves.
"""

import gc
import os
import pickle
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any, Generic, NoReturn, TypeVar, cast

from program.errors import ProgramError, Refusal

MOST = 1 << 26
_LONGEST = MOST + (1 << 16)  # bytes, with room for an error
_ENDS_WITHIN = 0.1  # seconds from SIGKILL, where the kernel lets go

T = TypeVar("T")

_left: set[int] = set()  # children that were left behind, to be reaped later


class NoAnswer(Refusal):
    """A child has ended, or was ended, without an answer."""


class Late(NoAnswer):
    """A child has not answered in time. `pid` is its process ID."""

    def __init__(self, name: str, wrong: str, fix: str, pid: int) -> None:
        super().__init__(name, wrong, fix)
        self.args = (name, wrong, fix, pid)
        self.pid = pid


class Child(Generic[T]):
    """A process that has to answer `within` so many seconds, or at any time if None. Errors call it by its `name`.

    The answer of a call is in the file `place`; a program's answer is its exit code. A child that `goes_on` is not
    killed for being late, and may outlive this process.
    """

    def __init__(self, name: str, pid: int, place: int | None, within: float | None, *, goes_on: bool = False) -> None:
        self.name, self.pid = name, pid
        self._place, self._within, self._goes_on = place, within, goes_on
        self._deadline = None if within is None else time.monotonic() + within
        self._ends = os.pidfd_open(pid)
        self._answer, self._is_too_long = b"", False
        _left.difference_update([each for each in _left if _exit_code(each) is not None])

    @property
    def seconds_left(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def answer(self) -> T:
        """Wait for the answer. Late if it does not come in time; NoAnswer if the child has ended without one."""
        return cast("T", self.answer_until())

    def answer_until(self, *stops: int) -> T | None:
        """Wait for the answer, but end the child and return None when one of these descriptors can be read."""
        ready: set[int] = set()
        try:
            ready = readable([self._ends, *stops], self.seconds_left)
        finally:
            code = self.end()
        return None if ready.intersection(stops) else self._value(code, is_late=not ready)

    async def answer_async(self) -> T:
        """Wait for the answer in an event loop."""
        import asyncio

        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._ends, ended.set)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.seconds_left):
                    await ended.wait()
        finally:
            loop.remove_reader(self._ends)
            code = self.end()
        return self._value(code, is_late=not ended.is_set())

    def end(self) -> int | None:
        """Kill the child, unless it goes on, and close its files; return its exit code, None if it is left behind."""
        if not self._goes_on:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._ends, signal.SIGKILL)  # without effect on an ended child
            readable([self._ends], _ENDS_WITHIN)
        os.close(self._ends)
        code = _exit_code(self.pid)
        if code is None:
            _left.add(self.pid)
        if self._place is not None:
            self._is_too_long = os.fstat(self._place).st_size > _LONGEST
            self._answer = b"" if self._is_too_long else os.pread(self._place, _LONGEST, 0)
            os.close(self._place)
        return code

    def _value(self, code: int | None, *, is_late: bool) -> T:
        if is_late:
            goes_on = f", and process {self.pid} goes on" if code is None else ""
            wrong = f"does not answer within {self._within:g} s{goes_on}"
            raise Late(self.name, wrong, "see what it waits for", self.pid)
        if self._place is None:
            return cast("T", code)
        if self._is_too_long:
            raise NoAnswer(self.name, f"answers with more than {MOST >> 20} MiB", "see what it answers with")
        ended = f"signal {-code} has ended it" if code and code < 0 else f"has ended with {code} and no answer"
        return cast("T", unpickled(self._answer, NoAnswer(self.name, ended, "if nobody ended it, memory was short")))


def readable(descriptors: Iterable[int], seconds: float | None) -> set[int]:
    """Wait for `seconds`, or for ever, until some of these descriptors can be read; return those."""
    events = select.poll()
    for descriptor in descriptors:
        events.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in events.poll(None if seconds is None else seconds * 1000)}


def _exit_code(pid: int) -> int | None:
    """Return the exit code of a child, negative for a signal; None if it has not ended."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0  # of the process that this one was forked from
    return os.waitstatus_to_exitcode(status) if ended else None


def forked(name: str, call: Callable[[], T], *, within: float | None = None, goes_on: bool = False) -> Child[T]:
    """Call `call` in a fork of this process, which must have one thread: a fork copies no others. SIGTERM ends the
    child, which collects no garbage. OSError if the fork fails."""
    place = os.memfd_create("answer")
    # The child's copies of objects that nobody has any more must not be ended: they would close files whose numbers are
    # other files' by then, and a server of gRPC would wait for its threads, which are not in the child.
    with _uncollected():
        pid = os.fork()
        if pid == 0:
            # The kernel's default: a handler could raise anywhere, and Python prints what an import raises.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            _leave(place, call)
    return Child(name, pid, place, within, goes_on=goes_on)


@contextmanager
def _uncollected() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def spawned(
    name: str, call: Callable[[], T], *, within: float | None = None, goes_on: bool = False, keep: Sequence[int] = ()
) -> Child[T]:
    """Call a module's function, or a partial of one, in a new Python: for a process with threads.

    The child has the open files in `keep` and no standard files. It ends with the thread that calls this, unless it
    `goes_on`. OSError if it cannot be started.
    """
    place = os.memfd_create("answer")
    program = f"from program.child import run_call; run_call({place}, {0 if goes_on else os.getpid()})"
    with _file(pickle.dumps(call)) as question:
        process = subprocess.Popen(  # noqa: S603 (this program)
            [sys.executable, "-P", "-c", program],
            stdin=question,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(place, *keep),
        )
    process.returncode = 0  # Child waits for it
    return Child(name, process.pid, place, within, goes_on=goes_on)


def run_call(place: int, parent: int) -> NoReturn:
    """In the child of spawned(): do the call on standard input, unless `parent` (a PID, or 0 for none) has ended."""
    if parent:
        from program.prctl import PR_SET_PDEATHSIG, prctl

        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    # The loaded modules may write to any file; the answer's file is in memory.
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LONGEST, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    _leave(place, lambda: pickle.load(sys.stdin.buffer)())  # noqa: S301 (by this program)


def output(
    command: Sequence[str | os.PathLike[str]],
    *,
    within: float,
    stdin: bytes = b"",
    environ: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Return what a program prints, with `stdin` on its standard input and `environ` over this process's environment.

    OSError if it cannot be started; Late if it does not end in time; NoAnswer if it prints more than MOST bytes.
    """
    name = " ".join(map(str, command))
    with _file(stdin) as file:
        process = subprocess.Popen(  # noqa: S603 (no shell)
            command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **(environ or {})}
        )
    process.returncode = 0  # Child waits for it
    child = Child[int](name, process.pid, None, within)
    with cast("IO[bytes]", process.stdout) as stdout, cast("IO[bytes]", process.stderr) as stderr:
        printed = {stdout.fileno(): bytearray(), stderr.fileno(): bytearray()}
        left = set(printed)
        try:
            while left and (ready := readable(left, child.seconds_left)):
                for descriptor in ready:
                    if not (chunk := os.read(descriptor, 1 << 16)):
                        left.remove(descriptor)
                    printed[descriptor] += chunk
                if sum(map(len, printed.values())) > MOST:
                    raise NoAnswer(name, f"prints more than {MOST >> 20} MiB", "see what it prints")
        except BaseException:
            child.end()
            raise
        return subprocess.CompletedProcess(command, child.answer(), *map(bytes, printed.values()))


def _file(content: bytes) -> IO[bytes]:
    """Return a file in memory, to be read from its beginning."""
    file = os.fdopen(os.memfd_create("given"), "w+b")
    file.write(content)
    file.seek(0)
    return file


def _leave(place: int, call: Callable[[], object]) -> NoReturn:
    """In the child: leave the answer, and end this process."""

    def flushed() -> object:
        value = call()
        for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed from the start
            stream.flush()
        return value

    try:
        with os.fdopen(place, "wb") as file:
            file.write(pickled(flushed))
    finally:
        os._exit(0)  # Python's own exit would take 20 to 40 ms for the imported modules, and the parent waits


def pickled(call: Callable[[], object]) -> bytes:
    """Return what the call returns or raises, for unpickled() in another process."""
    try:
        answer = pickle.dumps((True, call()), pickle.HIGHEST_PROTOCOL)
        if len(answer) > MOST:
            raise ValueError(f"an answer of {len(answer)} bytes, expected {MOST} at most")
    except Exception as error:
        trace = traceback.format_exc()
        if not isinstance(error, ProgramError):
            error.add_note(trace)
        try:
            answer = pickle.dumps((False, error))
            pickle.loads(answer)  # noqa: S301 (what was just made)
        except Exception:
            answer = pickle.dumps((False, RuntimeError(trace)))
    return answer


def unpickled(answer: bytes | bytearray, otherwise: Exception) -> Any:
    """Return or raise what a call in another process did; raise `otherwise` if the answer is incomplete."""
    try:
        is_value, value = pickle.loads(answer)  # noqa: S301 (by a process of ours)
    except (EOFError, pickle.UnpicklingError):
        raise otherwise from None
    if is_value:
        return value
    raise value


def let_go_of_standard_files() -> None:
    """Close the standard files, so that a reader of the parent's output does not wait for this child."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)
