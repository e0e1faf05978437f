"""A guest under QEMU, asked over the control socket while it runs."""

import os
import signal
import socket
import struct
import subprocess
import time
import zlib
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from launcher.control.listener import serving_control
from launcher.runtime.embedded import root_of
from launcher.runtime.vm import Phase
from program.ending import Ending
from tests.conftest import Command
from tests.launcher import kernels
from tests.launcher.control.serving import Heard, ctl, started
from tests.launcher.runtime.test_life import heard, living, plan
from tests.processes import BIN, unix_sockets
from tests.waiting import allowed, until

CTL = (BIN / "gpu-launcher", "ctl")


def test_a_guest_is_typed_to_paused_reset_and_killed(
    gpu_launcher: Command, embedded_uri: str, tmp_path: Path, short_dir: Path
) -> None:
    path = short_dir / "sock"
    planned = plan(tmp_path, embedded_uri, kernel=kernels.greets(b"login: "))

    def asked(action: str) -> str:
        result = gpu_launcher("ctl", action, "--socket", path)
        assert (result.stderr, result.returncode) == ("", 0)
        return result.stdout

    with living(planned) as (vm, changes, endings), serving_control(path, vm):
        heard(changes, Phase.RUNNING)
        with ctl("console", path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
            keyboard = process.stdin
            assert keyboard is not None
            assert process.stdout is not None
            screen = Heard(partial(process.stdout.read, 4096))
            until(lambda: _is_connected(planned.sockets / "virt-serial0"))
            asked("reset")  # it may have greeted before QEMU listened
            screen.wait_for(b"login: ")

            def is_typed() -> bool:
                keyboard.write(b"root")  # which is lost if the guest is reset only now
                return screen.comes(b"root", 5)

            until(is_typed)
            asked("pause")
            assert asked("state") == "default/vm: running, paused (user)\n"
            keyboard.write(b" and more")
            assert not screen.data.endswith(b"more")
            asked("resume")
            screen.wait_for(b"root and more")
            assert "<domain type='qemu' id=" in asked("xml")
            asked("kill")
            heard(changes, Phase.ENDED)
            assert process.wait(30) == 0
    assert endings == [Ending.ON_REQUEST]


def test_a_guests_screen_is_seen_as_a_picture_and_by_vnc(
    gpu_launcher: Command, embedded_uri: str, tmp_path: Path, short_dir: Path
) -> None:
    path, picture = short_dir / "sock", tmp_path / "screen.png"
    planned = plan(tmp_path, embedded_uri, kernel=kernels.IGNORES)

    def screenshot(file: Path) -> bytes:
        result = gpu_launcher("ctl", "screenshot", file, "--socket", path)
        assert (result.stdout, result.stderr, result.returncode) == ("", "", 0)
        return file.read_bytes()

    with living(planned) as (vm, changes, _), serving_control(path, vm):
        heard(changes, Phase.RUNNING)
        until(lambda: values_of(screenshot(picture)) > 1)  # SeaBIOS has written something
        assert gpu_launcher("ctl", "screenshot", tmp_path / "screen.ppm", "--socket", path).returncode == 1
        with ctl("vnc", path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.read(12) == b"RFB 003.008\n"  # RFC 6143, 7.1.1
            process.stdin.write(b"RFB 003.008\n")
            assert process.stdout.read(2) == b"\x01\x01"  # one security type: None
            process.stdin.close()
            assert process.wait(30) == 0
        place = f"127.0.0.1:{free_port()}"
        with started(*CTL, "vnc", "--listen", place, "--socket", path, stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            assert process.stderr.readline().startswith(f"gpu-launcher: the guest's screen is at {place}".encode())
            for _ in range(3):  # one after the other, and two at once
                with client_of(place) as client, client_of(place) as other:
                    assert (client.recv(12), other.recv(12)) == (b"RFB 003.008\n", b"RFB 003.008\n")
            assert process.poll() is None


def values_of(png: bytes) -> int:
    """How many values its bytes have, as they are filtered (PNG, 9): one where all is black."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    assert width >= 640
    assert height >= 400
    data, at = b"", 8
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        data += png[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    return len(set(zlib.decompress(data)))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def client_of(place: str) -> socket.socket:
    address, port = place.split(":")
    return socket.create_connection((address, int(port)), timeout=allowed(30))


def test_a_kill_ends_a_guest_whose_qemu_answers_nothing_any_more(
    gpu_launcher: Command, embedded_uri: str, tmp_path: Path, short_dir: Path
) -> None:
    """Whoever makes the VM live waits for QEMU then, in libvirt, and so do all threads that ask."""
    path = short_dir / "sock"
    root = root_of(embedded_uri)
    assert root is not None
    planned = plan(tmp_path, embedded_uri, kernel=kernels.IGNORES, grace=600)
    with living(planned) as (vm, changes, endings), serving_control(path, vm), ExitStack() as stack:
        heard(changes, Phase.RUNNING)
        os.kill(int((root / "run/qemu/default_vm.pid").read_text()), signal.SIGSTOP)
        asking = [stack.enter_context(ctl("reset", path, stderr=subprocess.PIPE)) for _ in range(6)]
        for process in asking:
            assert process.stderr is not None
            assert process.stderr.read().startswith(b"gpu-launcher: libvirt: has not answered in 10 s; it may")
            assert process.wait(30) == 1
        result = gpu_launcher("ctl", "state", "--socket", path)
        assert result.stdout == "default/vm: running, unknown (libvirt does not answer)\n"
        assert gpu_launcher("ctl", "shutdown", "--socket", path).returncode == 0
        until(lambda: vm.phase is Phase.STOPPING)
        killing = time.monotonic()
        assert gpu_launcher("ctl", "kill", "--socket", path).returncode == 0
        assert time.monotonic() - killing < allowed(5)
        heard(changes, Phase.ENDED)
        assert time.monotonic() - killing < allowed(20)  # libvirt gives a QEMU 10 s to end by itself
    assert endings == [Ending.ON_REQUEST]


def _is_connected(path: Path) -> bool:
    """Whether somebody has called a socket."""
    return any(one.path == str(path) and one.is_connected for one in unix_sockets(os.getpid()))
