"""The control socket itself: who may come, what is left, and that nobody holds up anybody."""

import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from launcher.control.listener import serving_control
from launcher.runtime.vm import VM, Phase, VMIdentity
from program.errors import Refusal
from tests.launcher.control.lines import END, Caller, raw
from tests.launcher.control.serving import IDENTITY, called, on_test_driver
from tests.waiting import allowed, until


@pytest.fixture
def vm() -> VM:
    return VM(IDENTITY)


def is_answered(call: Caller) -> bool:
    return bool(call("state")["phase"] == "preparing")


def test_the_socket_is_its_users_alone_and_nothing_is_left(short_dir: Path, vm: VM) -> None:
    path = short_dir / "run" / "sockets" / "launcher-sock"
    with serving_control(path, vm):
        assert stat.filemode(path.stat().st_mode) == "srw-------"
    assert list(short_dir.iterdir()) == []


def test_a_directory_that_was_there_stays(short_dir: Path, vm: VM) -> None:
    with serving_control(short_dir / "sock", vm):
        pass
    assert short_dir.is_dir()


def test_who_asks_nothing_pays_for_no_imports(short_dir: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from launcher.control.listener import serving_control\n"
        "from launcher.runtime.vm import VM, VMIdentity\n"
        f"with serving_control(pathlib.Path({str(short_dir / 'sock')!r}), VM(VMIdentity('lab', 'vm', ''))): pass\n"
        "assert not {'asyncio', 'libvirt', 'launcher.control.messages'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_launcher_that_serves_there_is_left_alone(short_dir: Path, vm: VM) -> None:
    with called(short_dir / "sock", vm) as call:
        with (
            pytest.raises(Refusal, match="sock: another launcher serves there"),
            serving_control(short_dir / "sock", vm),
        ):
            pass
        assert is_answered(call)


def test_what_a_killed_launcher_left_is_replaced(short_dir: Path, vm: VM) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(short_dir / "sock"))
        killed.listen()
    with called(short_dir / "sock", vm) as call:
        assert is_answered(call)
    assert not (short_dir / "sock").exists()


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, lambda path: path.symlink_to("/dev/null")])
def test_something_else_that_is_there_stays(short_dir: Path, vm: VM, make: Callable[[Path], None]) -> None:
    make(short_dir / "sock")
    with (
        pytest.raises(Refusal, match="something is there that is no socket, and stays"),
        serving_control(short_dir / "sock", vm),
    ):
        pass
    assert os.path.lexists(short_dir / "sock")


def test_a_place_that_no_socket_can_be_at_is_said(short_dir: Path, vm: VM) -> None:
    (short_dir / "file").touch()
    for path, why in (
        (short_dir / "file" / "sock", f"cannot make {short_dir}/file: File exists"),
        (short_dir / ("x" * 108), "cannot listen there: AF_UNIX path too long"),
    ):
        with pytest.raises(Refusal) as error, serving_control(path, vm):
            pass
        assert str(error.value) == (
            f"{path}: {why}; expected a place for the control socket, name another with --socket"
        )


def test_a_launcher_that_can_have_no_thread_says_so(short_dir: Path) -> None:
    """The kernel has no memory for its stack."""
    program = (
        "import pathlib, resource, threading\n"
        "from launcher.control.listener import serving_control\n"
        "from launcher.runtime.vm import VM, VMIdentity\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, -1)); threading.stack_size(8 << 30)\n"
        f"with serving_control(pathlib.Path({str(short_dir / 'sock')!r}), VM(VMIdentity('lab', 'vm', ''))): pass"
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
            with serving_control(short_dir / "sock", VM(IDENTITY)):
                served_by.append(1)
                done.wait(30)
        except Refusal:
            refused.append(1)

    launchers = [threading.Thread(target=launch) for _ in range(8)]
    for launcher in launchers:
        launcher.start()
    until(lambda: len(served_by) + len(refused) == 8)
    assert (len(served_by), len(refused)) == (1, 7)
    assert is_answered(Caller(short_dir / "sock"))
    done.set()
    for launcher in launchers:
        launcher.join()


def test_a_directory_that_somebody_locks_is_not_waited_for(short_dir: Path, vm: VM) -> None:
    locked = os.open(short_dir, os.O_RDONLY)
    fcntl.flock(locked, fcntl.LOCK_EX)
    with pytest.raises(Refusal, match="is locked by another process"), serving_control(short_dir / "sock", vm):
        pass
    os.close(locked)


def test_another_launchers_socket_is_not_removed(short_dir: Path, vm: VM) -> None:
    path = short_dir / "sock"
    with serving_control(path, vm):
        path.unlink()  # somebody tidied up
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
    assert path.exists()


def test_many_callers_at_once_are_all_answered(short_dir: Path, vm: VM) -> None:
    with called(short_dir / "sock", vm) as call:
        answers: list[bool] = []
        asking = [
            threading.Thread(target=lambda: answers.extend(is_answered(call) for _ in range(5))) for _ in range(30)
        ]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
        assert answers == [True] * 150


def test_a_call_that_waits_holds_up_no_other(short_dir: Path, vm: VM) -> None:
    with called(short_dir / "sock", vm) as call:
        watching = call.stream("events")
        assert next(watching)["phase"] == "preparing"
        assert is_answered(call)
        vm.becomes(Phase.STARTING)
        assert next(watching)["phase"] == "starting"
        watching.close()


@pytest.mark.parametrize(
    "leave",
    [
        lambda end: end.shutdown(socket.SHUT_RDWR),
        lambda end: end.shutdown(socket.SHUT_WR),
        lambda end: end.send(b"\n"),
    ],
    ids=["closes", "closes for writing", "sends more"],
)
def test_a_caller_that_does_not_wait_for_its_answers_is_forgotten(
    short_dir: Path, vm: VM, leave: Callable[[socket.socket], object]
) -> None:
    before = threading.active_count()
    with serving_control(short_dir / "sock", vm), raw(short_dir / "sock") as caller:
        caller.ask("events")
        assert caller.line() is not None
        assert len(vm._subscribers) == 1
        leave(caller.socket)
        until(lambda: vm._subscribers == [])
        until(lambda: threading.active_count() <= before + 1)  # the one that serves


def test_a_reader_that_sleeps_costs_a_bounded_memory_and_hears_what_it_lost(short_dir: Path, vm: VM) -> None:
    """A process of its own, stopped meanwhile; what it finds unread is what the socket and 256 changes hold."""
    with serving_control(short_dir / "sock", vm):
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
            assert len(lines) < 20_000


def test_the_end_is_heard_by_whoever_watches(short_dir: Path, vm: VM) -> None:
    with serving_control(short_dir / "sock", vm):
        watching = Caller(short_dir / "sock").stream("events")
        next(watching)
        vm.becomes(Phase.ENDED)
    assert [change["phase"] for change in watching] == ["ended"]


class Slow:
    """A domain that takes its time to tell its XML."""

    def __init__(self) -> None:
        self.is_asked = threading.Event()

    def XMLDesc(self) -> str:
        self.is_asked.set()
        time.sleep(0.3)
        return "<domain/>"


def test_a_request_that_is_at_work_at_the_end_is_answered(short_dir: Path, vm: VM) -> None:
    vm.becomes(Phase.RUNNING)
    domain = Slow()
    with vm.holding_domain(domain), ExitStack() as stack:
        with serving_control(short_dir / "sock", vm):
            caller = stack.enter_context(raw(short_dir / "sock"))
            caller.ask("xml")
            assert domain.is_asked.wait(allowed(5))
        assert caller.line() == {"answer": {"xml": "<domain/>"}}
        assert (caller.line(), caller.line()) == (END, None)


def test_who_waits_for_ever_does_not_hold_up_the_end(short_dir: Path, vm: VM) -> None:
    with serving_control(short_dir / "sock", vm), raw(short_dir / "sock"), raw(short_dir / "sock") as watching:
        watching.ask("events")
        assert watching.line() is not None
        ending = time.monotonic()
    assert time.monotonic() - ending < allowed(5)


def test_a_caller_of_another_protocol_hears_what_is_wrong_and_is_hung_up_on(short_dir: Path, vm: VM) -> None:
    """As gpu-launcher ctl of before this protocol, which spoke HTTP/2."""
    with called(short_dir / "sock", vm) as call, raw(short_dir / "sock") as older:
        older.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        answer = older.line()
        assert answer is not None
        assert answer["problems"][0]["wrong"] == "has more after its line"
        assert older.is_hung_up_on()
        assert is_answered(call)


def test_a_domain_larger_than_what_a_socket_holds_is_told_whole(short_dir: Path, tmp_path: Path) -> None:
    with (
        on_test_driver(tmp_path, more=f"<description>{'x' * 900_000}</description>") as vm,
        called(short_dir / "sock", vm) as call,
    ):
        assert call("xml") == {"xml": vm.domain().XMLDesc()}


def test_what_is_refused_comes_in_words_of_any_alphabet(short_dir: Path) -> None:
    with called(short_dir / "sock", VM(VMIdentity("lab", "größe 100%\n", ""))) as call:
        assert call.problem("xml") == ("lab/größe 100%\n", "is preparing", "ask again when it is running")
