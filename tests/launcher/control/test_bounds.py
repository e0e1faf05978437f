"""What a caller can have of the launcher: each bound, on a real socket of a process of its own."""

import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import Command
from tests.launcher.control.alone import Alone, alone
from tests.launcher.control.lines import END, Caller, raw, request
from tests.waiting import until


@pytest.fixture
def launcher(tmp_path: Path, short_dir: Path) -> Iterator[Alone]:
    with alone(tmp_path, short_dir / "sock") as launcher:
        yield launcher


def is_answered(launcher: Alone) -> bool:
    return bool(Caller(launcher.socket)("state")["phase"] == "running")


def test_a_caller_who_has_gone_leaves_nothing_and_an_idle_launcher_sleeps(launcher: Alone) -> None:
    threads, descriptors = launcher.threads(), launcher.descriptors() + 3  # the event loop's
    assert is_answered(launcher)
    with raw(launcher.socket) as one, raw(launcher.socket) as other, raw(launcher.socket) as half:
        one.ask("events")
        assert one.line() is not None
        other.ask("guest exec", path="sleep", arguments=["9"], seconds=9)
        half.send(b"{")
        until(lambda: launcher.descriptors() == descriptors + 3 or bool(other.line()))
    until(lambda: (launcher.threads(), launcher.descriptors()) == (threads, descriptors))
    launcher.do("assert vm._subscribers == []")
    until(lambda: launcher.sleeps(0.1))
    assert launcher.sleeps(2)


def test_a_request_has_a_longest_line(launcher: Alone) -> None:
    line = request("pause")
    longest = line.replace(b"{", b"{" + b" " * ((1 << 16) - len(line)), 1)
    for sent, answer in (
        (longest, {"answer": {}}),
        (b" " + longest, _problem("has more than 65536 bytes", "ask for less at once")),
        (line + line, _problem("has more after its line", "expected one request a connection")),
        (line + b"{", _problem("has more after its line", "expected one request a connection")),
    ):
        with raw(launcher.socket) as caller:
            caller.send(sent)
            assert caller.line() == answer
            assert caller.is_hung_up_on()
    assert is_answered(launcher)
    assert launcher.log() == ["INFO lab/vm has been paused over the control socket"]


def _problem(wrong: str, fix: str) -> dict[str, list[dict[str, str]]]:
    return {"problems": [{"subject": "the request", "wrong": wrong, "fix": fix}]}


@pytest.mark.parametrize("part", [b"x" * (1 << 20), b"x\n" * (1 << 19)], ids=["no line", "many lines"])
def test_400_mib_of_one_caller_are_not_kept(launcher: Alone, part: bytes) -> None:
    assert is_answered(launcher)
    before = launcher.memory()
    with raw(launcher.socket) as caller, suppress(ConnectionError):
        for number in range(400):
            caller.send(part)
            assert number < 10, "it reads on"
    assert launcher.memory() - before < 5
    assert is_answered(launcher)


def test_a_request_byte_by_byte_is_one(launcher: Alone) -> None:
    with raw(launcher.socket) as caller:
        for byte in request("state"):
            caller.send(bytes([byte]))
        assert caller.line() is not None
        assert (caller.line(), caller.line()) == (END, None)


def test_many_that_ask_for_what_there_is_no_more_of_leave_nothing(launcher: Alone) -> None:
    """5000, each of which has gone before its answer. What the first ones took of the heap is enough for the others."""
    assert is_answered(launcher)
    threads, memory, most = launcher.threads(), 0.0, 0
    for number in range(5000):
        if number == 2500:
            memory = launcher.memory()
        with raw(launcher.socket) as caller:
            caller.ask("reset")
        if number % 100 == 0:
            most = max(most, launcher.threads())
            assert is_answered(launcher)
    assert most <= threads + 4
    until(lambda: launcher.threads() == threads)
    assert launcher.memory() - memory < 5
    launcher.do("assert vm._subscribers == []")


def test_the_slow_have_a_deadline_and_those_who_listen_have_none(launcher: Alone) -> None:
    with raw(launcher.socket) as silent, raw(launcher.socket) as begins, raw(launcher.socket) as watches:
        begins.send(request("state")[:-1])
        watches.ask("events")
        for caller in (silent, begins):
            assert caller.line() == _problem("is not there in 5 s", "expected a whole line")
            assert caller.line() is None
        assert not watches.is_hung_up_on(1)
    assert launcher.log() == []


#: A domain whose XML is longer than what a socket holds, and whose screen has no end.
_ENDLESS = """
import os
class Endless:
    def XMLDesc(self): return f"<domain><devices><video><model/></video></devices>{' ' * (8 << 20)}</domain>"
    def connect(self): return self
    def newStream(self): return self
    def screenshot(self, stream, number): return "image/png"
    def recv(self, size): return bytes(size)
    def abort(self): os.write(2, b"left\\n")  # whole, unlike a print of two threads at once
vm._domain = Endless()
"""


def test_an_answer_that_is_not_taken_is_given_up(launcher: Alone) -> None:
    launcher.do(f"exec({_ENDLESS!r})")
    with raw(launcher.socket) as caller:
        caller.ask("xml")
        until(lambda: len(launcher.log()) > 0)
    assert launcher.log() == ["WARNING the control socket: a connection ends: its answer is not taken in time"]


def test_two_screenshots_are_taken_at_once_and_end_with_their_callers(launcher: Alone) -> None:
    launcher.do(f"exec({_ENDLESS!r})")
    wrong, fix = "has 2 screenshots taken of it", "ask again when one is done"

    def is_left(times: int) -> bool:
        return launcher.log() == ["left"] * times

    for left in (2, 4):
        with raw(launcher.socket) as one, raw(launcher.socket) as other:
            for caller in (one, other):
                caller.ask("screenshot")
                assert (part := caller.line()) is not None
                assert part["answer"]["mime_type"] == "image/png"
            assert Caller(launcher.socket).problem("screenshot") == ("lab/vm", wrong, fix)
        until(partial(is_left, left), seen=launcher.log)


def test_silent_connections_do_not_keep_ctl_out(launcher: Alone, gpu_launcher: Command) -> None:
    """32 did, for ever. Who has asked is kept before them."""
    with ExitStack() as stack:
        watches = stack.enter_context(raw(launcher.socket))
        watches.ask("events")
        assert watches.line() is not None
        for _ in range(100):
            stack.enter_context(raw(launcher.socket))
        result = gpu_launcher("ctl", "state", "--socket", launcher.socket)
        assert (result.stdout, result.stderr) == ("lab/vm: running\n", "")
        assert launcher.descriptors() < 60
        assert not watches.is_hung_up_on(1)
    assert len(launcher.log()) <= 3
    assert launcher.log()[0] == "WARNING the control socket: a connection ends: more than 32 connections"


def test_a_request_is_read_before_its_connection_ends_for_younger_ones(launcher: Alone) -> None:
    """Where hundreds wait at once, since the launcher had no CPU."""
    assert is_answered(launcher)
    os.kill(launcher.pid, signal.SIGSTOP)
    with ExitStack() as stack:
        first = stack.enter_context(raw(launcher.socket))
        first.ask("events")
        for _ in range(300):
            stack.enter_context(raw(launcher.socket))
        os.kill(launcher.pid, signal.SIGCONT)
        assert first.line() is not None
        assert not first.is_hung_up_on(1)
        until(lambda: launcher.descriptors() < 60)


def test_a_caller_that_reconnects_in_a_loop_keeps_nobody_out(launcher: Alone) -> None:
    assert is_answered(launcher)
    refused = 0
    for _ in range(2000):
        with socket.socket(socket.AF_UNIX) as caller:
            caller.setblocking(False)
            refused += caller.connect_ex(str(launcher.socket)) != 0
    assert refused == 0
    assert is_answered(launcher)
    assert launcher.log() == []


def test_those_who_have_gone_take_no_more_descriptors_than_there_are(launcher: Alone) -> None:
    assert is_answered(launcher)
    launcher.do("import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))")
    os.kill(launcher.pid, signal.SIGSTOP)
    for _ in range(500):
        with raw(launcher.socket):
            pass
    os.kill(launcher.pid, signal.SIGCONT)
    assert is_answered(launcher)
    assert launcher.log() == []


def test_connections_with_a_request_each_do_not_keep_ctl_out(launcher: Alone, gpu_launcher: Command) -> None:
    with ExitStack() as stack:
        callers = [stack.enter_context(raw(launcher.socket)) for _ in range(32)]
        for caller in callers:
            caller.ask("events")
            assert caller.line() is not None
        for action in ("state", "kill"):
            assert gpu_launcher("ctl", action, "--socket", launcher.socket).returncode == 0
        assert callers[0].is_hung_up_on()  # the oldest
        assert not callers[-1].is_hung_up_on(1)


def test_a_thread_that_cannot_be_had_fails_one_request(launcher: Alone) -> None:
    """The kernel has no memory for its stack."""
    assert is_answered(launcher)
    launcher.do("import resource, threading; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, -1))")
    launcher.do("threading.stack_size(8 << 30)")
    call = Caller(launcher.socket)
    for _ in range(9):
        subject, wrong, _fix = call.problem("state")
        assert (subject, wrong) == ("libvirt", "cannot be asked, for want of a thread: can't start new thread")
    assert call("kill") == {}
    launcher.do("threading.stack_size(0)")
    assert call("state")


def test_a_defect_is_a_problem_for_the_caller_and_one_line_of_the_log_a_second(launcher: Alone) -> None:
    launcher.do("vm._domain = 1")
    call = Caller(launcher.socket)
    for _ in range(50):
        assert call.problem("pause") == ("ctl pause", "has failed in the launcher", "its log says how")
    first, *others = launcher.log()
    assert first.startswith("ERROR the control socket: pause failed: AttributeError: 'int' object has no attribute")
    assert len(others) < 10
    assert all(re.fullmatch(rf"{re.escape(first)} \([0-9]+ lines before it are left out\)", line) for line in others)


def test_who_comes_while_there_is_no_descriptor_is_hung_up_on_and_the_next_is_answered(launcher: Alone) -> None:
    """The first caller of all, for whom everything has to be imported."""
    launcher.do("import os, resource; limits = resource.getrlimit(resource.RLIMIT_NOFILE)")
    launcher.do("resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/proc/self/fd')) - 1, limits[1]))")
    with raw(launcher.socket):
        until(lambda: len(launcher.log()) > 0)
        assert launcher.log()[0].startswith("ERROR the control socket cannot serve a caller: ")
        launcher.do("resource.setrlimit(resource.RLIMIT_NOFILE, limits)")
    assert is_answered(launcher)
    assert not any("Traceback" in line for line in launcher.log())


def test_without_a_descriptor_later_callers_wait_and_are_answered_then(launcher: Alone) -> None:
    descriptors = launcher.descriptors() + 3  # the event loop's
    assert is_answered(launcher)
    until(lambda: launcher.descriptors() == descriptors)
    launcher.do("import os, resource; limits = resource.getrlimit(resource.RLIMIT_NOFILE)")
    launcher.do("resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/proc/self/fd')) - 1, limits[1]))")
    with raw(launcher.socket) as caller:
        caller.ask("state")
        until(lambda: len(launcher.log()) > 0)
        launcher.do("resource.setrlimit(resource.RLIMIT_NOFILE, limits)")
        assert caller.line() is not None
    assert launcher.log()[0] == "ERROR the control socket: no connection can be taken: Too many open files"
