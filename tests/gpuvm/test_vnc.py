"""The guest's screen on a local port: clients over real sockets, and the viewer."""

import json
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from gpuvm.vnc import Viewer, listening, serve, viewer_command
from program.errors import Refusal, UserError
from tests.gpuvm.cluster import pod
from tests.gpuvm.standin import StandIn
from tests.processes import BIN, ROOT
from tests.waiting import allowed

#: Stands for `kubectl exec -i`: says what QEMU says first, then whatever it is told, until its client goes.
QEMU = [
    sys.executable,
    "-IS",
    "-c",
    "import os\nos.write(1, b'RFB 003.008\\n')\nwhile d := os.read(0, 99): os.write(1, d)",
]


@contextmanager
def served(command: list[str], viewer: list[str] | None) -> Iterator[tuple[int, threading.Thread]]:
    with listening("127.0.0.1", 0) as server:
        thread = threading.Thread(target=serve, args=(server, command, viewer))
        thread.start()
        yield server.getsockname()[1], thread
        thread.join(allowed(30))
        assert not thread.is_alive()


def test_each_client_has_its_own_way_to_the_screen_until_the_viewer_ends(tmp_path: Path) -> None:
    ends = tmp_path / "ends"
    viewer = [
        sys.executable,
        "-c",
        f"import pathlib, time\nwhile not pathlib.Path({str(ends)!r}).exists(): time.sleep(0.1)",
    ]
    with served(QEMU, viewer) as (port, _):
        clients = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(2)]
        for number, client in enumerate(clients):
            with client.makefile("rwb", 0) as screen:
                assert screen.readline() == b"RFB 003.008\n"
                screen.write(b"%d\n" % number)
                assert screen.readline() == b"%d\n" % number
        clients[0].close()
        ends.touch()
    assert clients[1].recv(1) == b""
    clients[1].close()


def test_the_port_is_told_to_programs_and_each_client_is_a_call_in_the_pod(kubectl: StandIn) -> None:
    kubectl.answers("get pods", [pod()])
    kubectl.answers("exec -i pod/vm", b"RFB 003.008\n")
    command: list[str | Path] = [BIN / "kubectl-gpuvm", "vnc", "vm", "--proxy-only"]
    with subprocess.Popen(command, cwd=ROOT, env=kubectl.env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            port = json.loads(process.stdout.readline())["port"]
            with socket.create_connection(("127.0.0.1", port), 10) as client:
                client.shutdown(socket.SHUT_WR)
                assert client.makefile("rb").read() == b"RFB 003.008\n"
        finally:
            process.terminate()
    call = ["exec", "-i", "pod/vm", "-c", "compute", "--", "gpu-launcher", "ctl", "vnc"]
    assert kubectl.calls[-1] == ["kubectl", "--namespace=vms", *call]


def test_the_viewer_is_the_one_that_is_there(tmp_path: Path) -> None:
    viewer = partial(viewer_command, environ={"PATH": str(tmp_path)})
    assert viewer(5, None, None) is None
    for name in ("vncviewer", "remote-viewer"):
        (tmp_path / name).touch(stat.S_IRWXU)
        address = "127.0.0.1:5" if name == "vncviewer" else "vnc://127.0.0.1:5"
        assert viewer(5, None, None) == [str(tmp_path / name), address]
    assert viewer(5, Viewer.TIGER, None) == [str(tmp_path / "vncviewer"), "127.0.0.1:5"]
    assert viewer(5, None, str(tmp_path / "vncviewer")) == [str(tmp_path / "vncviewer"), "127.0.0.1:5"]
    (tmp_path / "vncviewer").unlink()
    with pytest.raises(UserError, match="vncviewer: is no program that can be started; name one with --vnc-path"):
        viewer(5, Viewer.TIGER, None)
    with pytest.raises(UserError, match="/nowhere/x: is no program"):
        viewer(5, None, "/nowhere/x")


def test_a_port_that_is_taken_is_one_line() -> None:
    with listening("127.0.0.1", 0) as server:
        port = server.getsockname()[1]
        with (
            pytest.raises(Refusal, match=rf"127\.0\.0\.1:{port}: cannot be had: .*; name another port"),
            listening("127.0.0.1", port),
        ):
            pass
