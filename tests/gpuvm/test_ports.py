"""port-forward, ssh and scp; and a port on standard input and output, over a stand-in that really forwards."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Command
from tests.gpuvm.cluster import pod
from tests.gpuvm.standin import StandIn
from tests.processes import BIN, ROOT
from tests.waiting import allowed

#: Answers `get pods` from a file, and forwards a port to a guest that says each line back in capitals, then hangs up.
FORWARDER = """#!{python} -IS
import os, socket, sys
if "get" in sys.argv:
    print(open({pods!r}).read())
    sys.exit()
open({called!r}, "a").write(str(os.getpid()) + " " + " ".join(sys.argv[1:]) + "\\n")
with socket.create_server(("127.0.0.1", 0)) as server:
    print("Forwarding from 127.0.0.1:%d -> 22" % server.getsockname()[1], flush=True)
    client, _ = server.accept()
    with client, client.makefile("rwb") as guest:
        guest.write(b"SSH-2.0-guest\\n")
        guest.flush()
        for line in guest:
            guest.write(line.upper())
            guest.flush()
            if line == b"exit\\n":
                break
    client.shutdown(socket.SHUT_RDWR)
import time
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["8080"], ["8080"]),
        (["tcp/8080:80", "2222:22"], ["8080:80", "2222:22"]),
        (["--address", "0.0.0.0", "80"], ["--address=0.0.0.0", "80"]),
    ],
)
def test_ports_are_forwarded_by_kubectl(
    kubectl_gpuvm: Command, kubectl: StandIn, words: list[str], expected: list[str]
) -> None:
    kubectl.answers("get pods", [pod()])
    kubectl.answers("port-forward", "Forwarding\n")
    assert kubectl_gpuvm("port-forward", "vm/vm", *words, env=kubectl.env).stdout == "Forwarding\n"
    assert kubectl.calls[-1] == ["kubectl", "--namespace=vms", "port-forward", "pod/vm", *expected]


@pytest.fixture
def forwarder(kubectl: StandIn) -> StandIn:
    kubectl.answers("get", [pod()])
    pods, called = kubectl.directory / "pods.json", kubectl.directory / "called"
    done = subprocess.run([kubectl.bin / "kubectl", "get"], stdin=subprocess.DEVNULL, capture_output=True, check=True)
    pods.write_bytes(done.stdout)
    program = kubectl.bin / "kubectl"
    program.write_text(FORWARDER.format(python=sys.executable, pods=str(pods), called=str(called)))
    return kubectl


def test_one_port_may_be_standard_input_and_output(forwarder: StandIn) -> None:
    """As ssh's ProxyCommand: what the guest says comes at once, and its end is the end, of kubectl too."""
    command: list[str | Path] = [BIN / "kubectl-gpuvm", "port-forward", "--stdio", "vm/vm/vms", "22"]
    with subprocess.Popen(command, cwd=ROOT, env=forwarder.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as proxy:
        assert proxy.stdin is not None
        assert proxy.stdout is not None
        assert proxy.stdout.readline() == b"SSH-2.0-guest\n"
        for line in (b"hello\n", b"exit\n"):
            proxy.stdin.write(line)
            proxy.stdin.flush()
            assert proxy.stdout.readline() == line.upper()
        assert (proxy.stdout.read(), proxy.wait(30)) == (b"", 0)
    pid, *words = (forwarder.directory / "called").read_text().split()
    assert words == ["--namespace=vms", "port-forward", "pod/vm", ":22"]
    assert not Path(f"/proc/{pid}").exists()


def test_a_port_that_is_not_forwarded_is_one_line(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    kubectl.answers("get pods", [pod()])
    kubectl.answers("port-forward", err="error: unable to forward port because pod is not running\n", code=1)
    result = kubectl_gpuvm("port-forward", "vm", "22", "--stdio", env=kubectl.env)
    assert result.stderr.startswith(
        "kubectl-gpuvm: kubectl: error: unable to forward port because pod is not running; "
    )
    assert (result.stderr.count("\n"), result.returncode) == (1, 1)
    two = kubectl_gpuvm("port-forward", "vm", "22", "23", "--stdio", env=kubectl.env)
    assert two.stderr == "kubectl-gpuvm: --stdio: found 2 ports; expected one\n"


def proxy(*flags: str, port: str = "22") -> list[str]:
    words = [sys.executable, "-P", "-m", "gpuvm", "port-forward", "--stdio", *flags, "vm/vm/vms", port]
    return ["-o", f"ProxyCommand={shlex.join(words)}"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ssh", "vm"], ["ssh", *proxy(), "vm.vm.vms"]),
        (["ssh", "admin@vm/vm/vms"], ["ssh", *proxy(), "admin@vm.vm.vms"]),
        (
            ["ssh", "-l", "root", "-i", "key", "-p", "2222", "-c", "ls /", "--context=lab", "vmi/vm"],
            ["ssh", *proxy("--context=lab", port="2222"), "-i", "key", "root@vm.vm.vms", "ls /"],
        ),
        (["ssh", "vm", "-t", "-o", "-t", "A=b"], ["ssh", *proxy(), "-o", "A=b", "vm.vm.vms"]),
        (["scp", "a", "admin@vm:/tmp/b:c"], ["scp", *proxy(), "a", "admin@vm.vm.vms:/tmp/b:c"]),
        (["scp", "-r", "--preserve", "vm/vm:b", "a"], ["scp", *proxy(), "-r", "-p", "vm.vm.vms:b", "a"]),
    ],
)
def test_ssh_and_scp_are_the_users_own_through_a_forwarded_port(
    kubectl_gpuvm: Command, kubectl: StandIn, words: list[str], expected: list[str]
) -> None:
    kubectl.answers("get pods", [pod()])
    kubectl.answers("")
    kubectl.add(expected[0])
    assert kubectl_gpuvm(*words, env=kubectl.env).returncode == 0
    assert kubectl.calls[-1] == expected


def test_ssh_really_gets_what_the_guest_says(forwarder: StandIn) -> None:
    """OpenSSH's client takes our words: it meets the guest's greeting, and then one that is no ssh."""
    environ = {**os.environ, **forwarder.env}
    options = ["-t", "-oBatchMode=yes", "-t", "-v"]
    ssh: list[str | Path] = [BIN / "kubectl-gpuvm", "ssh", "root@vm", *options]
    done = subprocess.run(
        ssh,
        cwd=ROOT,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=allowed(60),
        check=False,
    )
    assert "remote software version guest" in done.stderr
    assert done.returncode == 255
