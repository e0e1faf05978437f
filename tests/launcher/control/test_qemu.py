"""A guest under QEMU, asked over the control socket while it runs."""

import os
import signal
import subprocess
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from launcher.control.served import served
from launcher.running.embedded import root_of
from launcher.running.events import Ending
from launcher.running.vm import Phase
from tests.conftest import Command
from tests.launcher import kernels
from tests.launcher.control.serving import Heard, ctl
from tests.launcher.running.test_life import heard, living, plan
from tests.waiting import until


def test_a_guest_is_typed_to_paused_reset_and_killed(
    gpu_launcher: Command, embedded_uri: str, tmp_path: Path, short_dir: Path
) -> None:
    path = short_dir / "sock"
    planned = plan(tmp_path, embedded_uri, kernel=kernels.greets(b"login: "))

    def asked(action: str) -> str:
        result = gpu_launcher("ctl", action, "--socket", path)
        assert (result.stderr, result.returncode) == ("", 0)
        return result.stdout

    with living(planned) as (vm, changes, endings), served(path, vm):
        heard(changes, Phase.RUNNING)
        with ctl("console", path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            screen = Heard(partial(process.stdout.read, 4096))
            until(lambda: _is_connected(planned.sockets / "virt-serial0"))
            asked("reset")  # it may have greeted before anybody listened
            screen.wait_for(b"login: ")
            process.stdin.write(b"root")
            screen.wait_for(b"login: root")
            asked("pause")
            assert asked("state") == "default/vm: running, paused (user)\n"
            process.stdin.write(b" and more")
            assert not screen.data.endswith(b"more")
            asked("resume")
            screen.wait_for(b"root and more")
            assert "<domain type='qemu' id=" in asked("xml")
            asked("kill")
            heard(changes, Phase.ENDED)
            assert process.wait(30) == 0
    assert endings == [Ending.ON_REQUEST]


def test_a_kill_ends_a_guest_whose_qemu_answers_nothing_any_more(
    gpu_launcher: Command, embedded_uri: str, tmp_path: Path, short_dir: Path
) -> None:
    """Whoever makes the VM live waits for QEMU then, in libvirt, and so do all threads that ask."""
    path = short_dir / "sock"
    root = root_of(embedded_uri)
    assert root is not None
    planned = plan(tmp_path, embedded_uri, kernel=kernels.IGNORES, grace=600)
    with living(planned) as (vm, changes, endings), served(path, vm), ExitStack() as stack:
        heard(changes, Phase.RUNNING)
        os.kill(int((root / "run/qemu/default_vm.pid").read_text()), signal.SIGSTOP)
        asking = [stack.enter_context(ctl("reset", path, stderr=subprocess.PIPE)) for _ in range(6)]
        for process in asking:
            assert process.stderr is not None
            assert process.stderr.read().startswith(f"gpu-launcher: {path}: libvirt has not answered in 10 s".encode())
            assert process.wait(30) == 1
        result = gpu_launcher("ctl", "state", "--socket", path)
        assert result.stdout == "default/vm: running, unknown (libvirt does not answer)\n"
        assert gpu_launcher("ctl", "shutdown", "--socket", path).returncode == 0
        until(lambda: vm.phase is Phase.STOPPING)
        killing = time.monotonic()
        assert gpu_launcher("ctl", "kill", "--socket", path).returncode == 0
        assert time.monotonic() - killing < 5
        heard(changes, Phase.ENDED)
        assert time.monotonic() - killing < 20  # libvirt gives a QEMU 10 s to end by itself
    assert endings == [Ending.ON_REQUEST]


def _is_connected(path: Path) -> bool:
    """Whether somebody has called a socket (proc_pid_net(5), `unix`: state 3, and the path at the end)."""
    sockets = (line.split() for line in Path("/proc/net/unix").read_text().splitlines())
    return any(fields[-1] == str(path) and fields[5] == "03" for fields in sockets)
