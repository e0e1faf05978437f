"""`gpu-launcher ctl` as a process, as `kubectl exec` calls it."""

import base64
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from launcher.commands.ctl import filesystem_row, lines_of, user_row
from launcher.control import gpus, messages
from launcher.control.client import ask, ask_for_all
from launcher.control.listener import serving_control
from launcher.runtime.agent import GuestFilesystem, GuestInfo, GuestInterface, GuestUser
from launcher.runtime.vm import VM, Phase, StopRequested
from program.errors import Refusal
from tests.conftest import Command
from tests.launcher.control.serving import CARDS, IDENTITY, UID, Heard, ctl, on_test_driver, started
from tests.launcher.vm.trees import write
from tests.launcher.vms import write_vmi
from tests.processes import ROOT, children, running
from tests.waiting import allowed


@pytest.fixture
def path(short_dir: Path) -> Path:
    return short_dir / "sock"


@pytest.fixture
def vm(tmp_path: Path, path: Path, short_dir: Path) -> Iterator[VM]:
    """One that runs and is served."""
    with on_test_driver(tmp_path, console=short_dir / "virt-serial0") as vm, serving_control(path, vm):
        yield vm


def test_a_state_is_one_line(gpu_launcher: Command, path: Path, vm: VM) -> None:
    def state(*flags: str) -> str:
        return gpu_launcher("ctl", "state", "--socket", path, *flags).stdout

    assert state() == "lab/vm: running\n"
    vm.domain().suspend()
    assert state() == "lab/vm: running, paused (user)\n"
    assert json.loads(state("--json")) == {
        "namespace": "lab", "name": "vm", "uid": UID, "phase": "running", "state": "paused", "reason": "user",
    }  # fmt: skip
    vm.becomes(Phase.STOPPING)
    assert state() == "lab/vm: stopping, paused (user)\n"


def test_a_vm_that_starts_has_a_state_too(gpu_launcher: Command, path: Path) -> None:
    vm = VM(IDENTITY)
    vm.becomes(Phase.STARTING)
    with serving_control(path, vm):
        assert gpu_launcher("ctl", "state", "--socket", path).stdout == "lab/vm: starting\n"


def test_the_xml_is_libvirts(gpu_launcher: Command, path: Path, vm: VM) -> None:
    assert gpu_launcher("ctl", "xml", "--socket", path).stdout == vm.domain().XMLDesc() + "\n"


def test_pause_resume_and_reset_are_silent_successes(gpu_launcher: Command, path: Path, vm: VM) -> None:
    for action, number in (("pause", 3), ("resume", 1), ("reset", 1)):
        result = gpu_launcher("ctl", action, "--socket", path)
        assert (result.stdout, result.stderr, result.returncode) == ("", "", 0)
        assert vm.domain().state()[0] == number


@pytest.mark.parametrize(("action", "stop"), [("shutdown", StopRequested.SHUTDOWN), ("kill", StopRequested.KILL)])
def test_a_stop_is_asked_for(gpu_launcher: Command, path: Path, vm: VM, action: str, stop: StopRequested) -> None:
    assert gpu_launcher("ctl", action, "--socket", path).returncode == 0
    assert vm.events.get(timeout=allowed(5)) is stop


def test_what_the_vm_does_not_allow_now_is_one_line_and_1(gpu_launcher: Command, path: Path) -> None:
    with serving_control(path, VM(IDENTITY)):
        for action in ("pause", "xml", "console"):
            result = gpu_launcher("ctl", action, "--socket", path)
            assert result.stderr == ("gpu-launcher: lab/vm: is preparing; ask again when it is running\n")
            assert (result.stdout, result.returncode) == ("", 1)


@pytest.mark.parametrize("left", ["nothing", "a killed launcher's socket", "a file on the way"])
def test_where_nobody_serves_is_one_line_and_1(gpu_launcher: Command, path: Path, left: str) -> None:
    asked = path
    if left == "a killed launcher's socket":
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(str(path))
    elif left == "a file on the way":
        path.touch()
        asked = path / "sock"
    result = gpu_launcher("ctl", "state", "--socket", asked)
    assert result.stderr == (
        f"gpu-launcher: {asked}: nobody serves there; expected the control socket of a gpu-launcher run, which is "
        "there while it runs: look at its log, or name another with --socket\n"
    )
    assert (result.stdout, result.returncode) == ("", 1)


def test_who_speaks_something_else_there_is_one_line_and_1(gpu_launcher: Command, path: Path) -> None:
    """As a launcher of before this protocol, which spoke gRPC."""
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    result = gpu_launcher("ctl", "state", "--socket", path)
    server.stop(None).wait()
    assert result.stderr == f"{_UNREADABLE.format(path)}\n"
    assert result.returncode == 1


_UNREADABLE = (
    "gpu-launcher: {}: who serves there gives an answer that cannot be read; "
    "expected a gpu-launcher run of this version to serve there"
)
_ENDED = "gpu-launcher: {}: the launcher has ended before it answered, or has hung up; its log says why"
_STATE = b'{"namespace": "lab", "name": "vm", "uid": "", "phase": "running"'


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (b"", _ENDED),
        (b'{"answer": {}', _UNREADABLE),
        (b'{"answer": {}}\n', _UNREADABLE),
        (b'{"answer": ' + _STATE + b', "state": 5}}\n', _UNREADABLE),
        (b'{"answer": []}\n', _UNREADABLE),
        (b'{"problems": []}\n', _UNREADABLE),
        (b'{"problems": ["a"]}\n', _UNREADABLE),
        (b'{"another": {}}\n', _UNREADABLE),
        (b"[1]\n", _UNREADABLE),
        (b'{"end": true}\n', "gpu-launcher: {}: no answer to state; expected one, from gpu-launcher run"),
        (b'{"problems": [{"subject": "a\\nb", "wrong": "c", "fix": "d", "by": 1}]}\n', "gpu-launcher: a\\nb: c; d"),
        (b'{"answer": ' + _STATE + b', "since": 5}}\n', "lab/vm: running"),
    ],
)  # fmt: skip
def test_whatever_a_launcher_answers_is_one_line(gpu_launcher: Command, path: Path, answer: bytes, line: str) -> None:
    """Of another version, or one that dies: fields that are new are left out."""
    with answering(path, answer) as requests:
        result = gpu_launcher("ctl", "state", "--socket", path)
    assert requests == [b'{"version": 1, "method": "state", "request": {}}\n']
    assert result.stdout + result.stderr == f"{line.format(path)}\n"
    assert result.returncode == (0 if result.stdout else 1)


@contextmanager
def answering(path: Path, answer: bytes) -> Iterator[list[bytes]]:
    """A stand-in for a launcher, which gives one caller that answer; yields what it was asked."""
    requests: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as launcher:
        launcher.bind(str(path))
        launcher.listen()

        def serve() -> None:
            with launcher.accept()[0] as caller:
                requests.append(caller.recv(1 << 16))
                caller.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield requests
        thread.join()
    path.unlink()


_CARD = {"name": "enp1s0", "mac": "52:54:00:12:34:56", "addresses": ["10.0.2.2/24"]}
_INFO = {"agent": "8.2.0", "host_name": "we\nb", "system": "", "kernel": "6.1", "interfaces": [_CARD]}
_USERS = {"users": [{"name": "root", "domain": "", "login_time": 1795340007.5}]}
_MOUNTED = {"filesystems": [{"name": "vda1", "mount_point": "/", "type": "ext4", "used": 1 << 30, "total": 3 << 30}]}


@pytest.mark.parametrize(
    ("what", "answer", "lines"),
    [
        ("info", _INFO, "agent: qemu-guest-agent 8.2.0\nhost: we\\nb\nkernel: 6.1\ninterface enp1s0: 10.0.2.2/24, "),
        ("users", _USERS, "root  since 2026-11-22T09:33:27Z\n"),
        ("filesystems", _MOUNTED, "/  vda1  ext4  33% of 3.0 GiB used\n"),
    ],
)  # fmt: skip
def test_what_the_guest_tells_is_lines_or_json(
    gpu_launcher: Command, path: Path, what: str, answer: dict[str, Any], lines: str
) -> None:
    sent = json.dumps({"answer": answer}).encode() + b'\n{"end": true}\n'
    with answering(path, sent) as requests:
        result = gpu_launcher("ctl", "guest", what, "--socket", path, "--timeout=3")
    assert requests == [b'{"version": 1, "method": "guest %b", "request": {"seconds": 3}}\n' % what.encode()]
    assert (result.stdout[: len(lines)], result.returncode) == (lines, 0)
    with answering(path, sent):
        result = gpu_launcher("ctl", "guest", what, "--socket", path, "--json")
    assert (result.stdout, result.returncode) == (json.dumps(answer) + "\n", 0)


@pytest.mark.parametrize(("code", "signal", "exits"), [(0, 0, 0), (3, 0, 3), (256, 0, 255), (0, 9, 137)])
def test_a_program_in_the_guest_is_its_output_its_errors_and_its_code(
    gpu_launcher: Command, path: Path, code: int, signal: int, exits: int
) -> None:
    out, err = (base64.b64encode(said).decode() for said in (b"out\n", b"err\n"))
    answer = {"answer": {"code": code, "signal": signal, "out": out, "err": err}}
    with answering(path, json.dumps(answer).encode() + b"\n") as requests:
        result = gpu_launcher("ctl", "guest", "exec", "--socket", path, "--", "a", "-b")
    assert json.loads(requests[0])["request"] == {"path": "a", "arguments": ["-b"], "seconds": 10}
    assert (result.stdout, result.stderr, result.returncode) == ("out\n", "err\n", exits)


def test_a_request_that_is_too_long_is_one_line_and_1(gpu_launcher: Command, path: Path, vm: VM) -> None:
    result = gpu_launcher("ctl", "guest", "exec", "--socket", path, "--", "echo", *["x" * 100_000] * 5)
    assert result.stderr == "gpu-launcher: the request: has more than 65536 bytes; ask for less at once\n"
    assert result.returncode == 1


def test_a_launcher_that_hangs_has_a_deadline(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as hanging:
        hanging.bind(str(path))
        hanging.listen(0)
        wrong = re.escape(f"{path}: no answer in 0 s; the launcher is there and hangs, its log says in what")
        for _ in range(3):  # one is in its queue, and there is no room for others
            with pytest.raises(Refusal, match=wrong):
                ask(path, messages.STATE, patience=0.1)


def test_what_comes_after_the_first_answer_may_take_its_time(path: Path, vm: VM) -> None:
    changes = ask_for_all(path, messages.EVENTS, patience=0.2)
    assert next(changes).phase == "running"
    threading.Timer(1.0, lambda: vm.becomes(Phase.ENDED)).start()
    assert [change.phase for change in changes] == ["ended"]


def test_what_is_no_action_is_2_and_every_method_is_one(gpu_launcher: Command) -> None:
    result = gpu_launcher("ctl", "start")
    assert (result.stderr.count("\n"), result.returncode) == (1, 2)
    actions = re.findall("'([a-z]+)'", result.stderr.partition("is not one of")[2])
    methods = {method.partition(" ")[0] for method in messages.METHODS}
    assert sorted(actions) == sorted({*methods} - {"screen"} | {"vnc"})


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (("guest",), "ctl guest: found '' after it; expected gpus, ping, info, users, filesystems, or exec -- PROG"),
        (("screenshot",), "ctl screenshot: is no file's name after it; expected FILE.png, or - for standard output"),
        (("screenshot", "a.jpg"), "ctl screenshot: found 'a.jpg' after it; expected FILE.png"),
        (("xml", "--json"), "--json: is not for xml; leave it out: state, events and guest have it"),
        (("state", "--listen=127.0.0.1:1"), "--listen: is not for state; leave it out, or call ctl vnc"),
        (("vnc", "--listen=5900"), "--listen 5900: is not an address and a port; expected one like 127.0.0.1:5900"),
        (("vnc", "--listen=0.0.0.0:5900"), "--listen 0.0.0.0:5900: would show the guest's screen to other hosts, with"),
        (("vnc", "--listen=[::1]:0"), "--listen [::1]:0: is not an address and a port; expected one like"),
        (("guest", "ping", "twice"), "ctl guest: found 'ping twice' after it; expected gpus, ping, info,"),
        (("guest", "exec"), "ctl guest: found 'exec' after it; expected gpus, ping, info, users"),
        (("state", "now"), "ctl state: found 'now' after it; leave that out"),
        (("guest", "ping", "--timeout=0"), "Invalid value for '--timeout'"),
    ],
)
def test_a_word_too_many_or_too_few_is_one_line_and_2(
    gpu_launcher: Command, words: tuple[str, ...], wrong: str
) -> None:
    result = gpu_launcher("ctl", *words)
    assert (result.stderr.count("\n"), result.returncode) == (1, 2)
    assert wrong in result.stderr


def test_a_libvirt_that_knows_no_agent_is_one_line_and_1(gpu_launcher: Command, path: Path, vm: VM) -> None:
    for words in (("ping",), ("info",), ("users",), ("filesystems",), ("exec", "--", "test", "-e", "/run/healthy")):
        result = gpu_launcher("ctl", "guest", *words[:1], "--socket", path, *words[1:])
        assert (result.stdout, result.stderr.count("\n"), result.returncode) == ("", 1, 1)
        assert result.stderr.startswith("gpu-launcher: the guest's agent: this function is not supported by the connec")


def test_what_the_agent_tells_is_a_line_each() -> None:
    card = GuestInterface(name="enp1s0", mac="52:54:00:12:34:56", addresses=("10.0.2.2/24", "fd10::2/120"))
    info = GuestInfo(agent="8.2.0", host_name="we\nb", system="", kernel="", interfaces=(card,))
    assert lines_of(info) == [
        "agent: qemu-guest-agent 8.2.0",
        "host: we\\nb",
        "interface enp1s0: 10.0.2.2/24, fd10::2/120, 52:54:00:12:34:56",
    ]


def test_users_and_file_systems_are_a_line_each() -> None:
    user = GuestUser(name="ad\nmin", domain="LAB", login_time=1795340007.5)
    root = GuestFilesystem(name="vda1", mount_point="/", type="ext4", used=3 << 28, total=3 << 30)
    assert user_row(user) == ("LAB\\ad\\nmin", "since 2026-11-22T09:33:27Z")
    assert filesystem_row(root) == ("/", "vda1", "ext4", "25% of 3.0 GiB used")
    assert filesystem_row(GuestFilesystem(name="", mount_point="/proc", type="", used=0, total=0))[3] == ""


def test_each_card_is_a_line_and_what_the_guest_tells_of_it_another() -> None:
    driver = "580.126.09"
    busy = (0, 10444 << 20, 81559 << 20, 41)
    gpu1 = messages.GuestGPU("gpu1", "0000:41:00.0", "0000:02:00.0", driver, *busy)
    gpu2 = messages.GuestGPU("gpu2", "0000:42:00.0", "0000:03:00.0", driver)
    nic = messages.GuestGPU("nic", "0000:43:00.0", "0000:04:00.0")
    assert list(gpus.lines_of(messages.GuestGPUs((gpu1, gpu2, nic)), {}, "")) == [
        "gpu1: host 0000:41:00.0 -> guest 0000:02:00.0",
        "  in the guest: driver 580.126.09, 0% busy, 10.2 of 79.6 GiB used, 41 °C",
        "gpu2: host 0000:42:00.0 -> guest 0000:03:00.0",
        "  in the guest: driver 580.126.09",
        "nic: host 0000:43:00.0 -> guest 0000:04:00.0",
        "  in the guest: nvidia-smi does not tell of it",
    ]


def test_the_cards_of_a_guest_that_is_not_asked_are_told(
    gpu_launcher: Command, path: Path, tmp_path: Path, short_dir: Path
) -> None:
    sysfs = tmp_path / "sys"
    write(sysfs / "bus/pci/devices/0000:41:00.0", _FUNCTION)
    with on_test_driver(tmp_path, devices=CARDS) as vm, serving_control(path, vm):
        result = gpu_launcher("ctl", "guest", "gpus", "--socket", path, "--sysfs", sysfs)
        told = json.loads(gpu_launcher("ctl", "guest", "gpus", "--json", "--socket", path, "--sysfs", sysfs).stdout)
    assert result.stdout == (
        "gpu1: host 0000:41:00.0 -> guest 0000:02:00.0\n"
        "  link: 32 GT/s x8, of 32 GT/s x16\n"
        "  power: D0\n"
        "  errors: 3 correctable, 0 nonfatal, 1 fatal\n"
        "  resets: flr, bus\n"
        "my-vgpu: host 7d43ffa6-98a8-4ef4-b0e4-c55bc4c9b9c0 -> guest 0000:04:00.0\n"
        "the guest is not asked: its owner allows it by the annotation gpu-launcher.dev/ask-guest: nvidia-smi\n"
    )
    assert (result.stderr, result.returncode) == ("", 0)
    assert [gpu["on_host"] for gpu in told["gpus"]] == [
        {
            "link": {"speed": 32.0, "lanes": 8, "max_speed": 32.0, "max_lanes": 16},
            "power_state": "D0",
            "errors": {"correctable": 3, "nonfatal": 0, "fatal": 1},
            "reset_methods": ["flr", "bus"],
            "faults": [],
        },
        None,
    ]
    assert told["host_silence"] == ""


_FUNCTION: dict[str, str | bytes] = {
    "current_link_speed": "32.0 GT/s PCIe",
    "current_link_width": "8",
    "max_link_speed": "32.0 GT/s PCIe",
    "max_link_width": "16",
    "power_state": "D0",
    "reset_method": "flr bus",
    "aer_dev_correctable": "RxErr 3\nTOTAL_ERR_COR 3",
    "aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 0",
    "aer_dev_fatal": "Undefined 1\nTOTAL_ERR_FATAL 1",
}


def test_of_a_card_that_sleeps_or_is_gone_is_told_what_there_is(tmp_path: Path) -> None:
    asleep, gone, odd = "0000:41:00.0", "0000:42:00.0", "0000:43:00.0"
    write(tmp_path / "bus/pci/devices" / asleep, {**_FUNCTION, "power_state": "D3hot"})
    write(tmp_path / "bus/pci/devices" / odd, {"power_state": "D0", "current_link_speed": "fast", "reset_method": ""})
    cards = tuple(messages.GuestGPU(f"gpu{host[6]}", host, "0000:02:00.0") for host in (asleep, gone, odd))
    found = messages.GuestGPUs(cards, silence="no agent")
    assert list(gpus.lines_of(found, *gpus.on_host(tmp_path, found))) == [
        "gpu1: host 0000:41:00.0 -> guest 0000:02:00.0",
        "  power: D3hot",
        "  errors: 3 correctable, 0 nonfatal, 1 fatal",
        "  resets: flr, bus",
        "gpu2: host 0000:42:00.0 -> guest 0000:02:00.0",
        "  not in the host's sysfs",
        "gpu3: host 0000:43:00.0 -> guest 0000:02:00.0",
        "  power: D0",
        "  resets: none is allowed",
        "  bus/pci/devices/0000:43:00.0/current_link_speed: holds 'fast'; expected a speed, like 16.0 GT/s PCIe",
        "no agent",
    ]


def test_a_sysfs_that_does_not_answer_is_a_line(tmp_path: Path) -> None:
    function = tmp_path / "bus/pci/devices/0000:41:00.0"
    function.mkdir(parents=True)
    os.mkfifo(function / "power_state")  # as a driver that hangs in its file
    found = messages.GuestGPUs((messages.GuestGPU("gpu1", "0000:41:00.0", "0000:02:00.0"),))
    lines = list(gpus.lines_of(found, *gpus.on_host(tmp_path, found, within=0.3)))
    assert lines[0] == "gpu1: host 0000:41:00.0 -> guest 0000:02:00.0"
    assert lines[-1].startswith(f"the host's {tmp_path}: does not answer within 0.3 s")


def test_events_are_one_line_each_until_the_vm_ends(path: Path, vm: VM) -> None:
    with ctl("events", path, stdout=subprocess.PIPE) as events:
        assert events.stdout is not None
        lines = [events.stdout.readline()]
        vm.happened("suspended", "paused")
        lines.append(events.stdout.readline())  # at once, though it is a pipe
        vm.becomes(Phase.ENDED)
        lines += events.stdout
        assert events.wait(30) == 0
    assert all(re.match(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ", line) for line in lines), lines
    assert [line.split(b" ", 1)[1] for line in lines] == [b"running\n", b"running: suspended (paused)\n", b"ended\n"]


def test_events_that_end_without_the_vm_are_an_error(path: Path, tmp_path: Path) -> None:
    """The launcher was killed."""
    program = (
        "import pathlib, time\n"
        "from launcher.control.listener import serving_control\n"
        "from launcher.runtime.vm import VM, VMIdentity\n"
        f"with serving_control(pathlib.Path({str(path)!r}), VM(VMIdentity('lab', 'vm', ''))):\n"
        "    print(flush=True); time.sleep(60)"
    )
    with started(sys.executable, "-c", program, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        launcher.stdout.readline()
        with ctl("events", path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as events:
            assert events.stdout is not None
            assert events.stderr is not None
            events.stdout.readline()
            launcher.kill()
            assert events.stderr.read().startswith(f"gpu-launcher: {path}: the launcher has ended".encode())
            assert events.wait(30) == 1


class Port:
    """What QEMU serves: the serial port's socket, of one caller at a time."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen(1)
        self._socket.settimeout(allowed(30))

    @contextmanager
    def attached(self) -> Iterator[tuple[socket.socket, Heard]]:
        """The next caller, and what it types. The guest ends when that socket is shut down."""
        peer, _ = self._socket.accept()
        typed = Heard(lambda: peer.recv(4096))
        try:
            yield peer, typed
        finally:
            with suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
            assert typed.ends()
            peer.close()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def port(short_dir: Path) -> Iterator[Port]:
    port = Port(short_dir / "virt-serial0")
    yield port
    port.close()


@contextmanager
def terminal() -> Iterator[tuple[int, int, Heard]]:
    """The keyboard, the terminal as a program has it, and the screen. In the end it is as it was."""
    keyboard, program = pty.openpty()
    screen = Heard(lambda: os.read(keyboard, 4096))
    before = termios.tcgetattr(program)
    try:
        yield keyboard, program, screen
        assert termios.tcgetattr(program) == before
    finally:
        os.close(program)
        assert screen.ends()
        os.close(keyboard)


def test_the_console_is_a_raw_terminal_until_its_escape(path: Path, vm: VM, port: Port) -> None:
    with (
        terminal() as (keyboard, program, screen),
        ctl("console", path, stdin=program, stdout=program, stderr=program) as console,
        port.attached() as (peer, typed),
    ):
        screen.wait_for(b"Ctrl-] leaves it")
        peer.sendall(b"login: ")
        screen.wait_for(b"login: ")
        os.write(keyboard, b"\x03\x1a\x11root\r")  # nothing of it is for the terminal
        typed.wait_for(b"\x03\x1a\x11root\r")
        os.write(keyboard, b"exit\x1dnever sent")
        assert console.wait(30) == 0
        assert typed.ends()
        assert typed.data == b"\x03\x1a\x11root\rexit"


def test_the_console_ends_with_the_guest(path: Path, vm: VM, port: Port) -> None:
    with (
        terminal() as (_, program, screen),
        ctl("console", path, stdin=program, stdout=program, stderr=program) as console,
    ):
        with port.attached() as (peer, _):
            peer.sendall(b"Power down.\r\n")
            screen.wait_for(b"Power down.\r\n")
        assert console.wait(30) == 0


def test_a_console_in_a_pipe_goes_on_after_its_input(path: Path, vm: VM, port: Port) -> None:
    """Any byte is the guest's there, and the escape too."""
    with ctl("console", path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as console:
        assert console.stdin is not None
        assert console.stdout is not None
        with port.attached() as (peer, typed):
            console.stdin.write(b"\x1dls\n" + bytes(300_000))
            console.stdin.close()
            typed.wait_for(b"\x1dls\n" + bytes(300_000))
            threading.Thread(target=lambda: peer.sendall(b"x" * 300_000)).start()
            assert console.stdout.read(300_000) == b"x" * 300_000
        assert console.wait(30) == 0


def test_a_console_without_input_shows_the_guest(path: Path, vm: VM, port: Port) -> None:
    with ctl("console", path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as console:
        assert console.stdout is not None
        with port.attached() as (peer, _):
            peer.sendall(b"booting\n")
            assert console.stdout.readline() == b"booting\n"
        assert console.wait(30) == 0


def test_a_console_whose_reader_is_gone_lets_the_port_go(path: Path, vm: VM, port: Port) -> None:
    """Though the guest says nothing: the port is of one caller at a time."""
    with (
        ctl("console", path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as console,
        port.attached() as (_, typed),
    ):
        assert console.stdout is not None
        console.stdout.close()
        assert typed.ends()
        assert console.wait(30) == 0


def test_a_console_that_nobody_serves_is_one_line_and_1(gpu_launcher: Command, path: Path, vm: VM) -> None:
    result = gpu_launcher("ctl", "console", "--socket", path)
    assert result.stderr.startswith(
        f"gpu-launcher: {path.parent}/virt-serial0: the guest's serial port cannot be reach"
    )
    assert (result.stderr.count("\n"), result.returncode) == (1, 1)


def test_a_vm_without_a_serial_port_has_no_console(gpu_launcher: Command, path: Path, tmp_path: Path) -> None:
    with on_test_driver(tmp_path) as vm, serving_control(path, vm):
        result = gpu_launcher("ctl", "console", "--socket", path)
    assert result.stderr == (
        "gpu-launcher: the VM: has no serial console; leave autoattachSerialConsole: false out of its manifest\n"
    )
    assert result.returncode == 1


def test_a_question_imports_neither_libvirt_nor_the_servers_half() -> None:
    program = (
        "import sys, launcher.commands.ctl, launcher.control.client, launcher.control.console\n"
        "assert not {'libvirt', 'asyncio', 'lxml', 'pydantic', 'jinja2'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_a_vm_that_run_runs_is_asked_paused_and_shut_down(gpu_launcher: Command, path: Path, tmp_path: Path) -> None:
    vm = write_vmi(tmp_path / "vm.yaml")
    allowing = "{name: vm, annotations: {gpu-launcher.dev/ask-guest: nvidia-smi}}"
    vm.write_text(vm.read_text().replace("{name: vm}", allowing))
    with running("gpu-launcher", "run", "--vm", vm, "--connect", "test:///default", "--socket", path) as run:
        run.wait_for_line("default_vm is running")
        assert gpu_launcher("ctl", "state", "--socket", path).stdout == "default/vm: running\n"
        assert gpu_launcher("ctl", "pause", "--socket", path).returncode == 0
        assert gpu_launcher("ctl", "state", "--socket", path).stdout == "default/vm: running, paused (user)\n"
        assert gpu_launcher("ctl", "resume", "--socket", path).returncode == 0
        none, silence = gpu_launcher("ctl", "guest", "gpus", "--socket", path).stdout.splitlines()
        assert none == "the VM has none of the host's cards"
        assert silence.startswith("the guest's agent: this function is not supported")
        assert gpu_launcher("ctl", "shutdown", "--socket", path).returncode == 0
        assert run.end() == 0
    assert not path.exists()
    assert "INFO default/vm has been paused over the control socket" in run.log


def test_a_place_that_is_taken_ends_run_before_it_starts_anything(
    gpu_launcher: Command, path: Path, tmp_path: Path
) -> None:
    path.write_text("somebody's")
    vm = write_vmi(tmp_path / "vm.yaml")
    result = gpu_launcher("run", "--vm", vm, "--connect", "test:///default", "--socket", path)
    *_, line = result.stderr.splitlines()
    assert line == (
        f"ERROR {path}: something is there that is no socket, and stays; expected a place for the control "
        "socket, name another with --socket"
    )
    assert (result.returncode, path.read_text()) == (1, "somebody's")


def test_a_worker_that_is_killed_leaves_no_socket(path: Path, tmp_path: Path) -> None:
    vm = write_vmi(tmp_path / "vm.yaml")
    with running("gpu-launcher", "run", "--vm", vm, "--connect", "test:///default", "--socket", path) as run:
        run.wait_for_line("default_vm is running")
        assert path.is_socket()
        (worker,) = children(run.process.pid)
        os.kill(worker, signal.SIGKILL)
        assert run.end() == 128 + signal.SIGKILL
    assert not path.exists()


def test_without_a_pod_ctl_asks_the_one_vm_of_its_user_or_says_which_there_are(
    vm: VM, path: Path, short_dir: Path, gpu_launcher: Command
) -> None:
    environ = {"XDG_RUNTIME_DIR": str(short_dir)}
    assert gpu_launcher("ctl", "state", env=environ).stderr == (
        "gpu-launcher: ctl: no VM runs here: there is no /var/run/kubevirt/sockets/launcher-sock, as in a pod, and "
        f"none of a VM of yours below {short_dir}/gpu-launcher; start one with gpu-launcher run, or name its control "
        "socket with --socket\n"
    )
    one, other = (short_dir / "gpu-launcher" / name / "sockets/launcher-sock" for name in ("default_a", "default_b"))
    for socket_of in (one, other):
        socket_of.parent.mkdir(parents=True)
    one.symlink_to(path)
    assert gpu_launcher("ctl", "state", env=environ).stdout == f"{IDENTITY}: running\n"
    other.symlink_to(path)
    done = gpu_launcher("ctl", "state", env=environ)
    assert done.returncode == 2
    assert done.stderr == f"gpu-launcher: --socket: several VMs of yours are here: {one}, {other}; name one of them\n"
