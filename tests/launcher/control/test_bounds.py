"""What a caller can have of the launcher: each bound, on a real socket of a process of its own."""

import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pytest

from tests.conftest import Command
from tests.launcher.control.alone import Alone, alone
from tests.launcher.control.raw import frame, message, raw
from tests.launcher.control.serving import CHECK, HEALTH, OURS, SERVING, Caller, status_of
from tests.waiting import until

OK, INVALID_ARGUMENT, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED = 0, 3, 4, 8
WATCH = f"{OURS}WatchChanges"


@pytest.fixture
def launcher(tmp_path: Path, short_dir: Path) -> Iterator[Alone]:
    with alone(tmp_path, short_dir / "sock") as launcher:
        yield launcher


def is_answered(launcher: Alone) -> bool:
    with raw(launcher.socket) as caller:
        call = caller.call(f"{OURS}GetState")
        caller.flush()
        return caller.status(call) == (OK, "")


def test_a_caller_who_has_gone_leaves_nothing_and_an_idle_launcher_sleeps(launcher: Alone) -> None:
    threads, descriptors = launcher.threads(), launcher.descriptors() + 3  # the event loop's
    assert is_answered(launcher)
    with raw(launcher.socket) as caller:
        for path in (WATCH, f"{HEALTH}Watch", f"{OURS}GetXML"):
            caller.call(path)
        caller.flush()
        until(lambda: caller.hear() and len(caller.events) > 8)
    until(lambda: (launcher.threads(), launcher.descriptors()) == (threads, descriptors))
    launcher.do("assert vm._subscribers == []")
    until(lambda: launcher.sleeps(0.1))
    assert launcher.sleeps(2)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"",
        message()[:3],
        message(b"x")[:-1],
        message() + message(),
        message() + b"\0",
        message(b"\xff"),
        message() * 1000,
    ],
)
def test_a_request_is_one_message(launcher: Alone, request_bytes: bytes) -> None:
    with raw(launcher.socket) as caller:
        call = caller.open(CHECK)
        caller.h2.send_data(call, request_bytes, end_stream=True)
        caller.flush()
        assert caller.status(call) == (INVALID_ARGUMENT, "expected one whole message of the method's type")
    assert is_answered(launcher)


def test_a_request_that_is_too_long_or_compressed_is_refused(launcher: Alone) -> None:
    call = Caller(launcher.socket)
    assert call(CHECK, bytes([0x12, 0xD0, 0x86, 0x03]) + bytes(50_000)) == SERVING  # an unknown field
    assert call.status(CHECK, bytes(5 << 20)) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED, "a request has at most 65536 bytes",
    )  # fmt: skip
    assert call.status(CHECK, bytes(9999), grpc.Compression.Gzip)[0] is grpc.StatusCode.UNIMPLEMENTED
    assert call(CHECK) == SERVING
    call.channel.close()


def test_400_mib_in_one_call_are_not_kept(launcher: Alone) -> None:
    assert is_answered(launcher)
    before = launcher.memory()
    call = Caller(launcher.socket)
    part = bytes(1 << 20)
    for path in (CHECK, f"{OURS}Reset"):
        answer = call.several(path, (part for _ in range(400)))
        assert status_of(answer.result)[0] in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT)
    call.channel.close()
    assert launcher.memory() - before < 5
    assert is_answered(launcher)


@pytest.mark.parametrize("part", [b"", b"x"])
def test_a_request_of_the_smallest_frames_is_not_kept(launcher: Alone, part: bytes) -> None:
    assert is_answered(launcher)
    before = launcher.memory()
    with raw(launcher.socket) as caller:
        call = caller.open(CHECK)
        caller.h2.send_data(call, message(bytes(60_000))[:5])
        caller.flush()
        caller.socket.settimeout(1)
        with suppress(OSError):  # the launcher reads no more until its own frames are read
            for _ in range(200):
                caller.socket.sendall(frame(0, 0, call, part) * 100)
        assert launcher.memory() - before < 4
    assert is_answered(launcher)


@pytest.mark.parametrize(("kind", "payload"), [(6, bytes(8)), (4, b"\0\4\0\0\xff\xff")], ids=["ping", "settings"])
def test_answers_that_nobody_reads_are_not_kept(launcher: Alone, kind: int, payload: bytes) -> None:
    """Each such frame is answered by another; the launcher reads no more than it can answer."""
    assert is_answered(launcher)
    before, sent = launcher.memory(), 0
    with raw(launcher.socket) as caller:
        caller.flush()
        caller.socket.settimeout(2)
        flood = frame(kind, 0, 0, payload) * 1000
        with suppress(OSError):  # it stalls, and is hung up on after a while
            while sent < 20_000_000:
                sent += caller.socket.send(flood)
        assert sent < 2_000_000
        assert launcher.memory() - before < 4
        assert is_answered(launcher)


def test_a_frame_that_nobody_knows_is_ignored(launcher: Alone) -> None:
    with raw(launcher.socket) as caller:
        caller.flush()
        caller.socket.sendall(frame(200, 7, 0, b"what") + frame(0x0C, 0, 1, bytes(50)))
        call = caller.call(CHECK)
        caller.flush()
        assert caller.status(call) == (OK, "")
    assert launcher.log() == []


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (("a-bin", "abcde"), "Server error: Error: Invalid base64"),
        (("grpc-timeout", f"{'9' * 4000}S"), "Server error: OverflowError: int too large to convert to float"),
    ],
)
def test_a_fault_is_one_line_and_many_are_one_a_second(launcher: Alone, header: tuple[str, str], words: str) -> None:
    for _ in range(50):
        with raw(launcher.socket) as caller:
            caller.open(CHECK, header, end=True)
            caller.flush()
            call = caller.call(CHECK)
            caller.flush()
            assert caller.status(call) == (OK, "")
    first, *others = launcher.log()
    assert first.startswith(f"ERROR the control socket: {words}")
    assert len(others) < 10
    assert all(re.fullmatch(rf"{re.escape(first)} \([0-9]+ lines before it are left out\)", line) for line in others)


def test_headers_have_a_bound(launcher: Alone) -> None:
    with raw(launcher.socket) as caller:
        caller.open(CHECK, ("x", "y" * 100_000))
        with suppress(OSError):
            caller.flush()
        assert caller.is_hung_up_on()
    assert is_answered(launcher)
    assert launcher.log() == []


def test_calls_at_work_have_a_bound_and_a_kill_is_always_taken(launcher: Alone) -> None:
    """32 of all connections."""
    with ExitStack() as stack:
        callers = [stack.enter_context(raw(launcher.socket)) for _ in range(5)]
        for caller in callers[:4]:
            calls = [caller.call(WATCH) for _ in range(8)]
            caller.flush()
            assert all(map(caller.is_told, calls))
        one_more = callers[0].call(WATCH)
        callers[0].flush()
        assert callers[0].status(one_more) == (
            RESOURCE_EXHAUSTED, "32 calls are at work; ask again when one of them has ended",
        )  # fmt: skip
        assert callers[0].ended() == {one_more}
        state, kill = callers[4].call(f"{OURS}GetState"), callers[4].call(f"{OURS}Kill")
        callers[4].flush()
        assert callers[4].status(state)[0] == RESOURCE_EXHAUSTED
        assert callers[4].status(kill)[0] == OK
        callers[0].socket.close()
        until(lambda: is_answered(launcher))


def test_calls_that_are_reset_free_what_they_held(launcher: Alone) -> None:
    """5000, which made 1524 threads once. What the first ones took of the heap is enough for the others."""
    assert is_answered(launcher)
    threads, memory, most = launcher.threads(), 0.0, 0
    for number in range(50):
        if number == 25:
            memory = launcher.memory()
        with raw(launcher.socket) as caller:
            for _ in range(100):
                caller.h2.reset_stream(caller.call(f"{OURS}Reset"))
            caller.flush()
            most = max(most, launcher.threads())
            call = caller.call(CHECK)
            caller.flush()
            assert caller.status(call)[0] == OK
    assert most <= threads + 4
    until(lambda: launcher.threads() == threads)
    assert launcher.memory() - memory < 5
    launcher.do("assert vm._subscribers == []")


def test_a_connection_ends_after_so_many_calls_and_none_of_them_is_lost(launcher: Alone) -> None:
    """h2 remembers something of each. Who does not make its next calls on another connection is hung up on."""
    call = Caller(launcher.socket)
    assert {call(CHECK) for _ in range(1100)} == {SERVING}
    call.channel.close()
    with raw(launcher.socket) as caller:
        caller.call(WATCH)
        with suppress(OSError):
            for _ in range(30):
                for _ in range(100):
                    caller.h2.reset_stream(caller.call(CHECK))
                caller.flush()
        assert caller.is_hung_up_on()
    assert is_answered(launcher)
    assert launcher.log()[-1].endswith("a connection ends: 2000 calls on one connection")


def test_the_slow_have_a_deadline_and_those_who_listen_have_none(launcher: Alone) -> None:
    with raw(launcher.socket) as begins, raw(launcher.socket) as watches:
        half = begins.open(CHECK)
        begins.flush()
        watches.call(WATCH)
        watches.flush()
        assert begins.status(half) == (DEADLINE_EXCEEDED, f"the caller keeps {CHECK} waiting")
        watches.socket.settimeout(1)
        assert not watches.is_hung_up_on()
    assert launcher.log() == []


def test_an_answer_that_is_not_taken_is_given_up(launcher: Alone) -> None:
    with raw(launcher.socket) as caller:
        caller.flush()
        caller.socket.sendall(frame(4, 0, 0, b"\0\4\0\0\0\0"))  # room for no byte of an answer
        call = caller.call(f"{OURS}GetXML")
        caller.flush()
        assert caller.status(call) == (DEADLINE_EXCEEDED, f"the caller keeps {OURS}GetXML waiting")


def test_silent_connections_do_not_keep_ctl_out(launcher: Alone, gpu_launcher: Command) -> None:
    """32 did, for ever. Who has a call is kept before them."""
    with ExitStack() as stack:
        watches = stack.enter_context(raw(launcher.socket))
        call = watches.call(WATCH)
        watches.flush()
        assert watches.is_told(call)
        callers = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(100)]
        for caller in callers:
            caller.connect(str(launcher.socket))
        result = gpu_launcher("ctl", "state", "--socket", launcher.socket)
        assert (result.stdout, result.stderr) == ("lab/vm: running\n", "")
        assert launcher.descriptors() < 60
        watches.socket.settimeout(1)
        assert not watches.is_hung_up_on()
    assert len(launcher.log()) <= 3
    assert launcher.log()[0].endswith("a connection ends: more than 32 connections")


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
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(launcher.socket))
    os.kill(launcher.pid, signal.SIGCONT)
    assert is_answered(launcher)
    assert launcher.log() == []


def test_connections_with_a_call_each_do_not_keep_ctl_out(launcher: Alone, gpu_launcher: Command) -> None:
    with ExitStack() as stack:
        callers = [stack.enter_context(raw(launcher.socket)) for _ in range(32)]
        for caller in callers:
            call = caller.call(WATCH)
            caller.flush()
            assert caller.is_told(call)
        for action in ("state", "kill"):
            assert gpu_launcher("ctl", action, "--socket", launcher.socket).returncode == 0
        assert callers[0].is_hung_up_on()  # the oldest
        callers[-1].socket.settimeout(1)
        assert not callers[-1].is_hung_up_on()


def test_a_thread_that_cannot_be_had_fails_one_call(launcher: Alone) -> None:
    """The kernel has no memory for its stack."""
    assert is_answered(launcher)
    launcher.do("import resource, threading; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, -1))")
    launcher.do("threading.stack_size(8 << 30)")
    call = Caller(launcher.socket)
    for _ in range(9):
        assert call.status(f"{OURS}GetState") == (
            grpc.StatusCode.RESOURCE_EXHAUSTED, "the launcher has no thread for that: can't start new thread",
        )  # fmt: skip
    assert call(CHECK) == SERVING
    assert call(f"{OURS}Kill") == b""
    launcher.do("threading.stack_size(0)")
    assert call(f"{OURS}GetState")
    call.channel.close()


def test_who_comes_while_there_is_no_descriptor_is_hung_up_on_and_the_next_is_answered(launcher: Alone) -> None:
    """The first caller of all, for whom everything has to be imported."""
    launcher.do("import os, resource; limits = resource.getrlimit(resource.RLIMIT_NOFILE)")
    launcher.do("resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/proc/self/fd')) - 1, limits[1]))")
    with raw(launcher.socket) as caller:
        until(lambda: len(launcher.log()) > 0)
        assert launcher.log()[0].startswith("ERROR the control socket cannot serve a caller: ")
        launcher.do("resource.setrlimit(resource.RLIMIT_NOFILE, limits)")
        del caller
    assert is_answered(launcher)
    assert not any("Traceback" in line for line in launcher.log())
