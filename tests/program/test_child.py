"""What is done in a child: forked by a process of its own, since this one may have threads."""

import asyncio
import gc
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from program.child import MOST, Child, Late, NoAnswer, forked, output, spawned
from program.errors import UserError
from tests.processes import ROOT
from tests.waiting import allowed

# A process whose child does `body`.
_PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from program.child import MOST, forked
from program.entry import ends_with
from program.errors import UserError
stopped = os.eventfd(0)
begun, begins = os.pipe()
parent = os.getpid()
def call():
    {body}
def main():
    child = forked("the child", call, within={within}, goes_on={goes_on})
    os.close(begins)
    {then}
    print(child.answer_until(stopped), Path("/proc/thread-self/children").read_text())
ends_with("prog", main)
"""


_SHORT = "if nobody ended it, memory was short"


#: What a library in the child could do to the file of its answer: the parent had three times that in memory.
_OVERFLOW = """
    for file in Path("/proc/self/fd").iterdir():
        if "memfd:answer" in os.path.realpath(file):
            os.ftruncate(int(file.name), 1 << 30)
            os._exit(0)
"""


def said(
    body: str, then: str = "", within: float | None = None, goes_on: bool = False, setup: Callable[[], object] = int
) -> str:
    """What that process prints: the answer and the children that it has, or the error."""
    program = _PROGRAM.format(body=body, then=then, within=within, goes_on=goes_on)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=allowed(60),
        preexec_fn=setup,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ("return Path('/sys')", "/sys"),
        ("pass", "None"),
        ("return 'a' * 200_000", "a" * 200_000),
        ("print('first'); return 3", "first\n3"),
        ("raise UserError('--vm', 'is away', 'name a file')", "prog: --vm: is away; name a file"),
        ("os.kill(os.getpid(), signal.SIGKILL)", f"prog: the child: signal 9 has ended it; {_SHORT}"),
        ("os._exit(3)", f"prog: the child: has ended with 3 and no answer; {_SHORT}"),
        (_OVERFLOW, "prog: the child: answers with more than 64 MiB; see what it answers with"),
        ("os.close(1); os.open('/dev/full', os.O_WRONLY); print('x')", "prog: cannot write: No space left on device"),
    ],
    ids=["value", "none", "more than a pipe has room for", "output", "error", "killed", "ended", "much", "full"],
)  # fmt: skip
def test_what_a_call_returns_or_raises_comes_back_and_no_child_is_left(body: str, answer: str) -> None:
    assert said(body) == answer


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("return bytes(MOST)", f"expected {MOST} at most"),
        ("return lambda: 0", "Can't pickle"),
        ("raise type('Odd', (Exception,), {})('odd')", "Odd: odd"),
    ],
)
def test_what_is_no_answer_is_an_error(body: str, why: str) -> None:
    assert why in said(body)


def test_a_late_child_is_killed_unless_it_goes_on() -> None:
    late = "prog: the child: does not answer within 0.2 s"
    assert said("time.sleep(60)", within=0.2) == f"{late}; see what it waits for"
    assert said("os.kill(os.getpid(), signal.SIGSTOP)", within=0.2) == f"{late}; see what it waits for"
    outlives = "while os.getppid() == parent: time.sleep(0.01)\n    print('done')"
    goes_on = said(outlives, within=0.2, goes_on=True).split("\n")
    assert goes_on[0].startswith(f"{late}, and process ")
    assert goes_on[1] == "done"


def test_one_that_nobody_waits_for_any_more_is_ended() -> None:
    stop, stopped = "os.eventfd_write(stopped, 1)", "None"
    assert said("time.sleep(60)", then=stop) == stopped
    assert said("return 2", then=f"os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT); {stop}") == stopped
    hangs = f"os.waitid(os.P_PID, child.pid, os.WSTOPPED); {stop}"
    assert said("os.kill(os.getpid(), signal.SIGSTOP)", then=hangs) == stopped


def test_nothing_is_raised_in_a_child_that_a_signal_ends() -> None:
    """Python prints an exception that is raised where it cannot be handled, as in a module's import."""
    body = "try: os.close(begins); time.sleep(60)\n    finally: print('raised', flush=True)"
    said_it = said(body, then="os.read(begun, 1); os.kill(child.pid, signal.SIGTERM)")
    assert said_it == f"prog: the child: signal 15 has ended it; {_SHORT}"


def test_a_program_that_was_started_to_ignore_its_children_has_them() -> None:
    assert said("return 3", setup=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)) == "3"


def test_a_child_ends_no_object_of_its_parents() -> None:
    """A server of gRPC among them would wait for its threads, which the child does not have; a file would close its
    number, which is another file's by then."""
    ended: list[int] = []

    class Unused:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            ended.append(os.getpid())

    def work() -> list[int]:
        for _ in range(10_000):
            (cycle := list[object]()).append(cycle)
        return ended

    was_enabled = gc.isenabled()
    gc.collect()
    Unused()
    assert forked("the child", work).answer() == []
    assert gc.isenabled() == was_enabled


# In a Python of its own.


def _refuse() -> None:
    raise UserError("--vm", "is away", "name a file")


def _is_gone(child: Child[None]) -> bool:
    return not Path(f"/proc/{child.pid}").exists()


def _overflow() -> None:
    """As _OVERFLOW."""
    (answer,) = (file for file in Path("/proc/self/fd").iterdir() if "memfd:answer" in os.path.realpath(file))
    os.truncate(answer, 1 << 30)


def test_a_call_in_another_python_gives_its_value_or_its_error() -> None:
    assert spawned("the child", partial(int, "3")).answer() == 3
    assert asyncio.run(spawned("the child", partial(int, "3"), within=allowed(60)).answer_async()) == 3
    with pytest.raises(UserError, match=r"^--vm: is away; name a file$"):
        spawned("the child", _refuse).answer()
    with pytest.raises(OSError, match="File too large"):
        spawned("the child", _overflow).answer()
    with pytest.raises(NoAnswer, match=r"^the child: has ended with 3 and no answer"):
        asyncio.run(spawned("the child", partial(os._exit, 3)).answer_async())


def test_it_has_the_files_that_it_is_given_and_no_others(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("wb") as file:
        assert spawned("the child", partial(os.fstat, file.fileno()), keep=(file.fileno(),)).answer().st_size == 0
        with pytest.raises(OSError, match="Bad file descriptor"):
            spawned("the child", partial(os.fstat, file.fileno())).answer()


def test_a_late_one_is_killed_and_so_is_one_that_nobody_waits_for_any_more() -> None:
    late = spawned("the child", partial(time.sleep, 60), within=0.2)
    with pytest.raises(Late, match=r"^the child: does not answer within 0.2 s; see what it waits for$"):
        asyncio.run(late.answer_async())
    cancelled = spawned("the child", partial(time.sleep, 60))
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(cancelled.answer_async(), 0.2))
    for child in (late, cancelled):
        while not _is_gone(child):
            spawned("one that is started later", int).answer()  # and takes leave of those before


def test_one_that_goes_on_is_left_to_itself() -> None:
    child = spawned("the child", partial(time.sleep, 60), within=0.2, goes_on=True)
    with pytest.raises(Late, match=f"^the child: does not answer within 0.2 s, and process {child.pid} goes on; see"):
        asyncio.run(child.answer_async())
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)


def test_it_does_nothing_for_a_process_that_was_killed_before_it_began(tmp_path: Path) -> None:
    """It would keep that one's lock for as long as it takes."""

    def called_for(parent: int) -> bool:
        program = f"from program.child import run_call; run_call(1, {parent})"
        call = pickle.dumps(partial(os.mkdir, tmp_path / "made"))
        subprocess.run([sys.executable, "-c", program], cwd=ROOT, input=call, stdout=subprocess.PIPE, check=False)
        return (tmp_path / "made").exists()

    assert not called_for(os.getppid())
    assert called_for(os.getpid())


# Programs.


def test_what_a_program_prints_and_its_exit_code_come_back() -> None:
    command = ("sh", "-c", "cat; echo $GREETING >&2; exit 3")
    done = output(command, within=allowed(60), stdin=b"x" * 200_000, environ={"GREETING": "hello"})
    assert (done.returncode, done.stdout, done.stderr) == (3, b"x" * 200_000, b"hello\n")
    assert output(("sh", "-c", "kill -9 $$"), within=allowed(60)).returncode == -9
    with pytest.raises(FileNotFoundError):
        output(("no-such-program",), within=allowed(60))


def test_a_program_that_takes_too_long_or_says_too_much_is_ended() -> None:
    began = time.monotonic()
    with pytest.raises(Late, match=r"^sh -c sleep 60 & sleep 60: does not answer within 0.2 s; see"):
        output(("sh", "-c", "sleep 60 & sleep 60"), within=0.2)
    with pytest.raises(NoAnswer, match=r"^yes: prints more than 64 MiB; see what it prints$"):
        output(("yes",), within=allowed(60))
    assert time.monotonic() - began < allowed(30)
