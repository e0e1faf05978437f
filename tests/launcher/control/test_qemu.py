"""A guest under QEMU, asked over the control socket while it runs."""

import subprocess
from functools import partial
from pathlib import Path

from launcher.control.served import served
from launcher.running.events import Ending
from launcher.running.vm import Phase
from tests.conftest import Command
from tests.launcher import kernels
from tests.launcher.control.serving import Heard, ctl
from tests.launcher.running.test_life import heard, living, plan


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
