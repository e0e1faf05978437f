"""The control socket itself: who may come, what is left, and that nobody holds up anybody."""

import fcntl
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from launcher.control.listener import served
from launcher.runtime.vm import VM, Phase, VMIdentity
from program.errors import Refusal
from tests.launcher.control.raw import raw
from tests.launcher.control.serving import (
    CHECK,
    HEALTH,
    IDENTITY,
    NOT_SERVING,
    OURS,
    SERVICE_UNKNOWN,
    SERVING,
    Caller,
    Heard,
    called,
    on_test_driver,
)
from tests.waiting import allowed, until

GUEST = b"\x0a\x05guest"  # HealthCheckRequest.service


@pytest.fixture
def vm() -> VM:
    return VM(IDENTITY)


def test_the_socket_is_its_users_alone_and_nothing_is_left(short_dir: Path, vm: VM) -> None:
    path = short_dir / "run" / "sockets" / "launcher-sock"
    with served(path, vm):
        assert stat.filemode(path.stat().st_mode) == "srw-------"
    assert list(short_dir.iterdir()) == []


def test_a_directory_that_was_there_stays(short_dir: Path, vm: VM) -> None:
    with served(short_dir / "sock", vm):
        pass
    assert short_dir.is_dir()


def test_who_asks_nothing_pays_for_no_imports(short_dir: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from launcher.control.listener import served\n"
        "from launcher.runtime.vm import VM, VMIdentity\n"
        f"with served(pathlib.Path({str(short_dir / 'sock')!r}), VM(VMIdentity('lab', 'vm', ''))): pass\n"
        "assert not {'grpclib', 'asyncio', 'google.protobuf', 'libvirt'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_launcher_that_serves_there_is_left_alone(short_dir: Path, vm: VM) -> None:
    with called(short_dir / "sock", vm) as call:
        with pytest.raises(Refusal, match="sock: another launcher serves there"), served(short_dir / "sock", vm):
            pass
        assert call(CHECK) == SERVING


def test_what_a_killed_launcher_left_is_replaced(short_dir: Path, vm: VM) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(short_dir / "sock"))
        killed.listen()
    with called(short_dir / "sock", vm) as call:
        assert call(CHECK) == SERVING
    assert not (short_dir / "sock").exists()


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, lambda path: path.symlink_to("/dev/null")])
def test_something_else_that_is_there_stays(short_dir: Path, vm: VM, make: Callable[[Path], None]) -> None:
    make(short_dir / "sock")
    with (
        pytest.raises(Refusal, match="something is there that is no socket, and stays"),
        served(short_dir / "sock", vm),
    ):
        pass
    assert os.path.lexists(short_dir / "sock")


def test_a_place_that_no_socket_can_be_at_is_said(short_dir: Path, vm: VM) -> None:
    (short_dir / "file").touch()
    for path, why in (
        (short_dir / "file" / "sock", f"cannot make {short_dir}/file: File exists"),
        (short_dir / ("x" * 108), "cannot listen there: AF_UNIX path too long"),
    ):
        with pytest.raises(Refusal) as error, served(path, vm):
            pass
        assert str(error.value) == (
            f"{path}: {why}; expected a place for the control socket, name another with --socket"
        )


def test_a_launcher_that_can_have_no_thread_says_so(short_dir: Path) -> None:
    """The kernel has no memory for its stack."""
    program = (
        "import pathlib, resource, threading\n"
        "from launcher.control.listener import served\n"
        "from launcher.runtime.vm import VM, VMIdentity\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, -1)); threading.stack_size(8 << 30)\n"
        f"with served(pathlib.Path({str(short_dir / 'sock')!r}), VM(VMIdentity('lab', 'vm', ''))): pass"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.stderr.splitlines()[-1] == (
        f"program.errors.Refusal: {short_dir}/sock: cannot have a thread to serve it: can't start new thread; "
        "expected room for one more in the container's limits of processes and memory"
    )
    assert list(short_dir.iterdir()) == []


def test_of_launchers_that_find_a_stale_socket_at_once_one_serves(short_dir: Path) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(short_dir / "sock"))
    start, served_by, refused = threading.Barrier(8), [], []
    done = threading.Event()

    def launch() -> None:
        start.wait()
        try:
            with served(short_dir / "sock", VM(IDENTITY)):
                served_by.append(1)
                done.wait(30)
        except Refusal:
            refused.append(1)

    launchers = [threading.Thread(target=launch) for _ in range(8)]
    for launcher in launchers:
        launcher.start()
    until(lambda: len(served_by) + len(refused) == 8)
    assert (len(served_by), len(refused)) == (1, 7)
    assert Caller(short_dir / "sock")(CHECK) == SERVING
    done.set()
    for launcher in launchers:
        launcher.join()


def test_a_directory_that_somebody_locks_is_not_waited_for(short_dir: Path, vm: VM) -> None:
    locked = os.open(short_dir, os.O_RDONLY)
    fcntl.flock(locked, fcntl.LOCK_EX)
    with pytest.raises(Refusal, match="is locked by another process"), served(short_dir / "sock", vm):
        pass
    os.close(locked)


def test_another_launchers_socket_is_not_removed(short_dir: Path, vm: VM) -> None:
    path = short_dir / "sock"
    with served(path, vm):
        path.unlink()  # somebody tidied up
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
    assert path.exists()


def test_many_callers_at_once_are_all_answered(short_dir: Path, vm: VM) -> None:
    """On connections of their own, and on one."""
    with called(short_dir / "sock", vm) as call:
        callers = [Caller(short_dir / "sock") for _ in range(30)]
        answers: list[bytes] = []

        def ask(caller: Caller) -> None:
            answers.extend(caller(CHECK) for _ in range(5))
            caller.channel.close()

        asking = [threading.Thread(target=ask, args=(caller,)) for caller in callers]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
        futures = [call.soon(CHECK) for _ in range(8)]
        answers += [future.result() for future in futures]
        assert answers == [SERVING] * 158


def test_a_call_that_waits_holds_up_no_other(short_dir: Path, vm: VM) -> None:
    with called(short_dir / "sock", vm) as call:
        watching = call.stream(f"{OURS}WatchChanges")
        assert b"preparing" in next(watching)
        assert call(CHECK) == SERVING
        vm.becomes(Phase.STARTING)
        assert b"starting" in next(watching)
        watching.cancel()


def test_a_client_that_goes_away_is_forgotten(short_dir: Path, vm: VM) -> None:
    before = threading.active_count()
    with served(short_dir / "sock", vm):
        for hangs_up in (True, False):
            caller = Caller(short_dir / "sock")
            stream = caller.stream(f"{OURS}WatchChanges")
            next(stream)
            if hangs_up:
                caller.channel.close()
            else:
                stream.cancel()
            until(lambda: vm._subscribers == [])
            caller.channel.close()
        until(lambda: threading.active_count() <= before + 1)  # the one that serves


def test_a_reader_that_sleeps_costs_a_bounded_memory_and_hears_what_it_lost(short_dir: Path, vm: VM) -> None:
    """A process of its own, stopped meanwhile; what it finds unread is what the socket and 256 changes hold."""
    with served(short_dir / "sock", vm):
        arguments = ["-m", "launcher", "ctl", "events", "--json", "--socket", str(short_dir / "sock")]
        with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE) as reader:
            assert reader.stdout is not None
            assert b"preparing" in reader.stdout.readline()
            reader.send_signal(signal.SIGSTOP)
            for _ in range(20_000):
                vm.happened("suspended", "paused")
            reader.send_signal(signal.SIGCONT)
            vm.becomes(Phase.ENDED)
            *lines, last = reader.stdout.read().splitlines()
            assert b'"phase": "ended"' in last
            assert any(b'"lost": 0' not in line for line in lines)
            # What the socket and HTTP/2 hold, and 256.
            assert len(lines) < 20_000


def test_the_end_is_heard_by_whoever_watches(short_dir: Path, vm: VM) -> None:
    with served(short_dir / "sock", vm):
        watching = Caller(short_dir / "sock").stream(f"{OURS}WatchChanges")
        next(watching)
        vm.becomes(Phase.ENDED)
    assert b"ended" in next(watching)
    assert list(watching) == []


def test_an_answer_is_not_lost_to_whoever_acknowledges_before_it_reads(short_dir: Path, vm: VM) -> None:
    """Were the connection closed at once, writing to it would fail, and what is unread be forgotten."""
    path, listening, leaving = short_dir / "sock", threading.Event(), threading.Event()

    def serve() -> None:
        with served(path, vm):
            listening.set()
            leaving.wait(30)

    thread = threading.Thread(target=serve)
    thread.start()
    assert listening.wait(30)
    with raw(path) as caller:
        first = caller.call(CHECK)
        caller.flush()
        assert caller.status(first) == (0, "")
        call = caller.call(CHECK)
        caller.flush()
        for event in (select.POLLIN, select.POLLRDHUP):  # the answer comes, and then nothing more
            poll = select.poll()
            poll.register(caller.socket, event)
            assert poll.poll(10_000)
            leaving.set()
        caller.h2.ping(bytes(8))
        caller.flush()
        assert caller.status(call) == (0, "")
    thread.join(allowed(10))
    assert not thread.is_alive()


def test_who_waits_for_ever_does_not_hold_up_the_end(short_dir: Path, vm: VM) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        with called(short_dir / "sock", vm) as call:
            silent.connect(str(short_dir / "sock"))
            watching = call.stream(f"{OURS}WatchChanges")
            next(watching)
            ending = time.monotonic()
        assert time.monotonic() - ending < allowed(5)
    with pytest.raises(grpc.RpcError):
        next(watching)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(4096),
        # HTTP/2, and room for no more bytes (a WINDOW_UPDATE of 0), which is an error in it
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    ],
)
def test_who_speaks_something_else_is_hung_up_on(short_dir: Path, vm: VM, nonsense: bytes) -> None:
    with called(short_dir / "sock", vm) as call, socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(short_dir / "sock"))
        peer.sendall(nonsense)
        heard = Heard(lambda: peer.recv(4096))
        assert heard.ends(), "it hangs up"
        assert call(CHECK) == SERVING


def test_a_domain_larger_than_http2s_window_is_told_whole(short_dir: Path, tmp_path: Path) -> None:
    with (
        on_test_driver(tmp_path, more=f"<description>{'x' * 300_000}</description>") as vm,
        called(short_dir / "sock", vm) as call,
    ):
        assert vm.domain().XMLDesc().encode() in call(f"{OURS}GetXML")


def test_what_is_refused_comes_in_words_of_any_alphabet(short_dir: Path) -> None:
    with called(short_dir / "sock", VM(VMIdentity("lab", "größe 100%\n", ""))) as call:
        code, words = call.status(f"{OURS}GetXML")
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert words == "lab/größe 100%\\n: is preparing; ask again when it is running"


def test_health_is_of_the_process_and_of_the_guest(short_dir: Path, vm: VM) -> None:
    with called(short_dir / "sock", vm) as call:
        assert call(f"{HEALTH}Check") == SERVING
        assert call(f"{HEALTH}Check", GUEST) == NOT_SERVING
        watching = call.stream(f"{HEALTH}Watch", GUEST)
        assert next(watching) == NOT_SERVING
        vm.becomes(Phase.STARTING)
        vm.becomes(Phase.RUNNING)
        assert next(watching) == SERVING
        assert call(f"{HEALTH}Check", GUEST) == SERVING
        vm.becomes(Phase.STOPPING)
        assert next(watching) == NOT_SERVING
        vm.becomes(Phase.ENDED)
        assert list(watching) == []
        other = b"\x0a\x05other"
        assert call.status(f"{HEALTH}Check", other) == (grpc.StatusCode.NOT_FOUND, "expected '' or 'guest'")
        assert next(call.stream(f"{HEALTH}Watch", other)) == SERVICE_UNKNOWN
