"""What a caller can have of the hook: each bound, on the socket of a sidecar of its own."""

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pytest

from tests.launcher.hook.callers import Caller, status_of
from tests.launcher.hook.raw import INFO, frame, message, raw
from tests.processes import Program, running
from tests.waiting import until

OK, INVALID_ARGUMENT, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED = 0, 3, 4, 8


class Hook:
    def __init__(self, program: Program, path: Path) -> None:
        self.socket = path
        self._program, self._pid = program, program.process.pid

    def log(self) -> list[str]:
        return [line for line in self._program.log if "is there for KubeVirt" not in line]

    def threads(self) -> int:
        return len(list(Path(f"/proc/{self._pid}/task").iterdir()))

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self._pid}/fd").iterdir()))

    def memory(self) -> float:
        """MB that are its own."""
        status = Path(f"/proc/{self._pid}/status").read_text()
        return int(status.partition("\nRssAnon:")[2].split()[0]) * 1024 / 1e6

    def has_imported(self) -> None:
        """Wait for what it imports behind its first answer, so that its memory is its callers' from then on."""
        assert is_answered(self)
        until(lambda: "/lxml/" in Path(f"/proc/{self._pid}/maps").read_text())
        threads = 0

        def is_still() -> bool:
            nonlocal threads
            before, threads = threads, self.threads()
            return before == threads == 1

        until(is_still)


@pytest.fixture
def hook(short_dir: Path) -> Iterator[Hook]:
    path = short_dir / "a.sock"
    with running("gpu-launcher", "hook", "--socket", path, "--sysfs", "/sys") as program:
        program.wait_for_line("is there for KubeVirt")
        yield Hook(program, path)


def is_answered(hook: Hook) -> bool:
    with raw(hook.socket) as caller:
        call = caller.call(INFO)
        caller.flush()
        return caller.status(call) == (OK, "")


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
def test_a_request_is_one_message(hook: Hook, request_bytes: bytes) -> None:
    with raw(hook.socket) as caller:
        call = caller.open(INFO)
        caller.h2.send_data(call, request_bytes, end_stream=True)
        caller.flush()
        assert caller.status(call) == (INVALID_ARGUMENT, "expected one whole message of the method's type")
    assert is_answered(hook)


def test_a_request_that_is_too_long_or_compressed_is_refused(hook: Hook) -> None:
    call = Caller(hook.socket)
    assert call(INFO, bytes([0x12, 0xD0, 0x86, 0x03]) + bytes(50_000))  # an unknown field
    assert call.status(INFO, bytes(5 << 20)) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED, "a request has at most 4194304 bytes",
    )  # fmt: skip
    assert call.status(INFO, bytes(9999), grpc.Compression.Gzip)[0] is grpc.StatusCode.UNIMPLEMENTED
    assert call(INFO)
    call.channel.close()


def test_400_mib_in_one_call_are_not_kept(hook: Hook) -> None:
    hook.has_imported()
    before = hook.memory()
    call = Caller(hook.socket)
    part = bytes(1 << 20)
    answer = call.several(INFO, (part for _ in range(400)))
    assert status_of(answer.result)[0] in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT)
    call.channel.close()
    assert hook.memory() - before < 15
    assert is_answered(hook)


@pytest.mark.parametrize("part", [b"", b"x"])
def test_a_request_of_the_smallest_frames_is_not_kept(hook: Hook, part: bytes) -> None:
    hook.has_imported()
    before = hook.memory()
    with raw(hook.socket) as caller:
        call = caller.open(INFO)
        caller.h2.send_data(call, message(bytes(60_000))[:5])
        caller.flush()
        caller.socket.settimeout(1)
        with suppress(OSError):  # the hook reads no more until its own frames are read
            for _ in range(200):
                caller.socket.sendall(frame(0, 0, call, part) * 100)
        assert hook.memory() - before < 10
    assert is_answered(hook)


@pytest.mark.parametrize(("kind", "payload"), [(6, bytes(8)), (4, b"\0\4\0\0\xff\xff")], ids=["ping", "settings"])
def test_answers_that_nobody_reads_are_not_kept(hook: Hook, kind: int, payload: bytes) -> None:
    """Each such frame is answered by another; the hook reads no more than it can answer."""
    hook.has_imported()
    before, sent = hook.memory(), 0
    with raw(hook.socket) as caller:
        caller.flush()
        caller.socket.settimeout(2)
        flood = frame(kind, 0, 0, payload) * 1000
        with suppress(OSError):  # it stalls, and is hung up on after a while
            while sent < 20_000_000:
                sent += caller.socket.send(flood)
        assert sent < 2_000_000
        assert hook.memory() - before < 4
        assert is_answered(hook)


def test_a_frame_that_nobody_knows_is_ignored(hook: Hook) -> None:
    with raw(hook.socket) as caller:
        caller.flush()
        caller.socket.sendall(frame(200, 7, 0, b"what") + frame(0x0C, 0, 1, bytes(50)))
        call = caller.call(INFO)
        caller.flush()
        assert caller.status(call) == (OK, "")
    assert hook.log() == []


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (("a-bin", "abcde"), "Server error: Error: Invalid base64"),
        (("grpc-timeout", f"{'9' * 4000}S"), "Server error: OverflowError: int too large to convert to float"),
    ],
)
def test_a_fault_is_one_line_and_many_are_one_a_second(hook: Hook, header: tuple[str, str], words: str) -> None:
    for _ in range(50):
        with raw(hook.socket) as caller:
            caller.open(INFO, header, end=True)
            caller.flush()
            call = caller.call(INFO)
            caller.flush()
            assert caller.status(call) == (OK, "")
    until(lambda: len(hook.log()) > 0)
    first, *others = hook.log()
    assert first.startswith(f"ERROR the hook's socket: {words}")
    assert len(others) < 10
    assert all(re.fullmatch(rf"{re.escape(first)} \([0-9]+ lines before it are left out\)", line) for line in others)


def test_headers_have_a_bound(hook: Hook) -> None:
    with raw(hook.socket) as caller:
        caller.open(INFO, ("x", "y" * 100_000))
        with suppress(OSError):
            caller.flush()
        assert caller.is_hung_up_on()
    assert is_answered(hook)
    assert hook.log() == []


def test_calls_at_work_have_a_bound(hook: Hook) -> None:
    """32 of all connections, half of whose requests is there."""
    with ExitStack() as stack:
        callers = [stack.enter_context(raw(hook.socket)) for _ in range(5)]
        for caller in callers[:4]:
            for _ in range(8):
                caller.open(INFO)
            caller.flush()
            assert caller.hear()
        one_more = callers[4].call(INFO)
        callers[4].flush()
        assert callers[4].status(one_more) == (
            RESOURCE_EXHAUSTED, "32 calls are at work; ask again when one of them has ended",
        )  # fmt: skip
        callers[0].socket.close()
        until(lambda: is_answered(hook))


def test_calls_that_are_reset_free_what_they_held(hook: Hook) -> None:
    """5000. What the first ones took of the heap is enough for the others."""
    hook.has_imported()
    threads, memory, most = hook.threads(), 0.0, 0
    for number in range(50):
        if number == 25:
            memory = hook.memory()
        with raw(hook.socket) as caller:
            for _ in range(100):
                caller.h2.reset_stream(caller.call("/kubevirt.hooks.v1alpha3.Callbacks/OnDefineDomain"))
            caller.flush()
            most = max(most, hook.threads())
            call = caller.call(INFO)
            caller.flush()
            assert caller.status(call)[0] == OK
    assert most <= threads + 4
    until(lambda: hook.threads() == threads)
    assert hook.memory() - memory < 5


def test_a_connection_ends_after_so_many_calls(hook: Hook) -> None:
    """h2 remembers something of each. KubeVirt makes a connection for each call."""
    with raw(hook.socket) as caller:
        with suppress(OSError):
            for _ in range(20):
                for _ in range(100):
                    caller.h2.reset_stream(caller.call(INFO))
                caller.flush()
        assert caller.is_hung_up_on()
    assert is_answered(hook)
    until(lambda: hook.log()[-1:] != [] and hook.log()[-1].endswith("a connection ends: 1000 calls on one connection"))


def test_a_request_that_does_not_end_has_a_deadline(hook: Hook) -> None:
    with raw(hook.socket) as caller:
        half = caller.open(INFO)
        caller.flush()
        assert caller.status(half) == (DEADLINE_EXCEEDED, f"the caller keeps {INFO} waiting")
    assert hook.log() == []


def test_an_answer_that_is_not_taken_is_given_up(hook: Hook) -> None:
    with raw(hook.socket) as caller:
        caller.flush()
        caller.socket.sendall(frame(4, 0, 0, b"\0\4\0\0\0\0"))  # room for no byte of an answer
        call = caller.call(INFO)
        caller.flush()
        assert caller.status(call) == (DEADLINE_EXCEEDED, f"the caller keeps {INFO} waiting")


def test_silent_connections_do_not_keep_kubevirt_out(hook: Hook) -> None:
    with ExitStack() as stack:
        for _ in range(100):
            caller = stack.enter_context(socket.socket(socket.AF_UNIX))
            caller.connect(str(hook.socket))
        assert is_answered(hook)
        assert hook.descriptors() < 60
    until(lambda: len(hook.log()) > 0)
    assert hook.log()[0].endswith("a connection ends: more than 32 connections")
