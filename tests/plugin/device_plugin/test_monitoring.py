"""What the daemon tells the kubelet's probes and Prometheus, and whom it keeps out."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest

from plugin.device_plugin.monitoring import LIVE, READY
from program.http import MOST_CONNECTIONS, SECONDS_FOR_ALL
from tests.conftest import Command, Machine
from tests.kernel import bind
from tests.kubelet import Kubelet, running_kubelet
from tests.pages import assert_closed, devices_on
from tests.plugin.daemon import BOTH, RTX_3090, descriptors, fetch, free_port, serve, status, threads, wait_until
from tests.waiting import allowed

PORTS = ("--metrics", "--health")
PATHS = {"--metrics": "/metrics", "--health": LIVE}


@pytest.fixture
def port() -> int:
    return free_port()


@contextmanager
def silent_connections(port: int, count: int) -> Iterator[list[socket.socket]]:
    """So many connections over which nothing is said."""
    with ExitStack() as stack:
        made: list[socket.socket] = []
        for _ in range(count):
            caller = stack.enter_context(socket.socket())
            caller.settimeout(allowed(10))
            caller.connect(("127.0.0.1", port))
            made.append(caller)
        yield made


def test_it_lives_without_a_kubelet_and_is_ready_once_the_kubelet_watches(
    machine: Machine, short_dir: Path, port: int
) -> None:
    with serve(machine("two-rtx-3090"), short_dir, "--health", str(port)) as plugin:
        plugin.wait_for_line("waiting for the kubelet")
        assert fetch(port, LIVE) == (200, "ok\n")
        assert fetch(port, READY) == (503, f"not watched by the kubelet: {RTX_3090}\n")
        with running_kubelet(short_dir):
            plugin.wait_for_line("registered, and watched")
            assert (status(port, LIVE), status(port, READY)) == (200, 200)


def test_it_stays_ready_when_the_config_gives_a_resource_another_name(
    machine: Machine, kubelet: Kubelet, tmp_path: Path, port: int
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("{}\n")
    with serve(machine("two-rtx-3090"), kubelet.directory, "--config", config, "--health", str(port)) as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        new = tmp_path / "new.yaml"
        new.write_text('offer: [{vendor: "10de", pci_class: "03", resource: nvidia.com/pgpu}]')
        new.rename(config)
        plugin.wait_for_line("nvidia.com/pgpu: registered, and watched")
        assert status(port, READY) == 200


def test_a_node_without_anything_to_offer_is_ready(machine: Machine, kubelet: Kubelet, port: int) -> None:
    with serve(machine("virtual-machine-without-iommu"), kubelet.directory, "--health", str(port)):
        wait_until(lambda: status(port, READY) == 200)


def test_the_health_port_has_the_node_as_a_page(copied_machine: Machine, kubelet: Kubelet, port: int) -> None:
    sys = copied_machine("two-rtx-3090")
    with serve(sys, kubelet.directory, "--health", str(port)) as plugin:
        wait_until(lambda: status(port, "/") == 200)
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        connection = HTTPConnection("127.0.0.1", port, timeout=allowed(10))
        connection.request("GET", "/?theme=1")
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        assert_closed(text, answer.headers["Content-Security-Policy"])
        assert (answer.headers["X-Content-Type-Options"], answer.headers["Cache-Control"]) == ("nosniff", "no-store")
        assert [each.state for each in devices_on(text)] == ["free", "free"]
        wait_until(lambda: fetch(port, "/") == (200, fetch(port, "/?theme=1")[1]))  # unless a look came between the two
        bind(sys, "0000:01:00.1", None)
        wait_until(lambda: devices_on(fetch(port, "/")[1])[0].state == "unhealthy")
        assert "The node cannot be looked at" not in text
        (sys / "bus/pci/devices").rename(sys / "bus/pci/gone")
        plugin.wait_for_line("the node's inventory stays as it was")
        assert "The node cannot be looked at now" in fetch(port, "/")[1]


def test_what_is_no_question_for_a_page_is_told_what_is(machine: Machine, kubelet: Kubelet, port: int) -> None:
    def ask(question: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=allowed(10)) as caller:
            caller.sendall(question)
            return b"".join(iter(lambda: caller.recv(4096), b""))

    with serve(machine("two-rtx-3090"), kubelet.directory, "--health", str(port)):
        wait_until(lambda: status(port, LIVE) == 200)
        assert fetch(port, "/nothing") == (404, f"expected one of {LIVE}, {READY}, /\n")
        assert ask(b"POST /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n").startswith(b"HTTP/1.1 405 ")
        assert ask(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n").startswith(b"HTTP/1.1 400 ")
        assert ask(b"GET /livez HTTP/1.1\r\nX: " + b"x" * 8300).startswith(b"HTTP/1.1 431 ")
        head = ask(b"HEAD /livez HTTP/1.0\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert head.endswith(b"\r\n\r\n")


# Every pod may reach the ports where no NetworkPolicy counts. Silent connections had a thread each (1,104 threads for
# 1,100), and with a limit of 128 descriptors 140 of them had the kubelet told that all cards are gone.


@pytest.mark.parametrize("option", PORTS)
def test_silent_connections_take_no_thread_and_keep_nobody_out(
    machine: Machine, kubelet: Kubelet, port: int, option: str
) -> None:
    with serve(machine("two-rtx-3090"), kubelet.directory, option, str(port)) as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        wait_until(lambda: status(port, PATHS[option]) == 200)
        before = threads(plugin), descriptors(plugin)
        for number in range(1_100 // 110):
            with silent_connections(port, 110):
                # The newest is served: a question goes ahead of all who are silent.
                assert status(port, PATHS[option]) == 200, number
                assert threads(plugin) <= before[0]  # one may have ended
                # One more is being accepted, and a look has a pipe and a page.
                assert descriptors(plugin) <= before[1] + MOST_CONNECTIONS + 1 + 3
        assert kubelet.healthy(RTX_3090) == BOTH
        wait_until(lambda: descriptors(plugin) == before[1])


def test_idle_connections_beyond_the_limit_of_descriptors_leave_the_inventory_and_the_registration(
    copied_machine: Machine, kubelet: Kubelet, port: int
) -> None:
    sys = copied_machine("two-rtx-3090")
    other = free_port()
    few = ("prlimit", "--nofile=128:128")
    ports = ("--metrics", str(port), "--health", str(other))
    with serve(sys, kubelet.directory, *ports, within=few) as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        wait_until(lambda: status(other, READY) == 200)
        with silent_connections(port, 140), silent_connections(other, 140):
            bind(sys, "0000:01:00.1", None)
            kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == ("0000:e1:00.0",))
            kubelet.restart()
            kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == ("0000:e1:00.0",))
            assert status(other, LIVE) == 200
        assert not [line for line in plugin.log if "is gone" in line or "Too many open files" in line]


def test_without_a_descriptor_left_what_was_seen_last_stands(copied_machine: Machine, kubelet: Kubelet) -> None:
    """Only root reaches the plugin's sockets; so this is about whatever else takes the descriptors."""
    sys = copied_machine("two-rtx-3090")
    with serve(sys, kubelet.directory, "--rescan", "0.1", within=("prlimit", "--nofile=64:64")) as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        plugin.wait_for_line("watched by the kubelet")
        (path,) = kubelet.directory.glob("gpu-plugin-*.sock")
        with ExitStack() as stack:
            for _ in range(80):
                caller = stack.enter_context(socket.socket(socket.AF_UNIX))
                caller.setblocking(False)
                with suppress(BlockingIOError):
                    caller.connect(str(path))
            plugin.wait_for_line("the node's inventory stays as it was")
            assert kubelet.healthy(RTX_3090) == BOTH
        bind(sys, "0000:01:00.1", None)
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == ("0000:e1:00.0",))
        assert not [line for line in plugin.log if "is gone" in line or "Traceback" in line]
        assert any("Too many open files" in line and "raise the limit of open files" in line for line in plugin.log)


def test_the_limit_of_descriptors_is_the_highest_that_may_be(machine: Machine, kubelet: Kubelet) -> None:
    within = ("prlimit", "--nofile=100:1000")
    with serve(machine("two-rtx-3090"), kubelet.directory, within=within) as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        limits = Path(f"/proc/{plugin.process.pid}/limits").read_text().splitlines()
        (line,) = (line for line in limits if line.startswith("Max open files"))
        assert line.split()[3:5] == ["1000", "1000"]


def test_a_caller_that_is_slow_is_dropped(machine: Machine, kubelet: Kubelet, port: int) -> None:
    with serve(machine("two-rtx-3090"), kubelet.directory, "--metrics", str(port)):
        wait_until(lambda: status(port, "/metrics") == 200)
        with socket.create_connection(("127.0.0.1", port)) as caller:
            caller.settimeout(0.2)
            began = time.monotonic()
            with suppress(ConnectionError):
                while True:
                    caller.sendall(b"G")
                    with suppress(TimeoutError):
                        if not caller.recv(1):
                            break
        assert SECONDS_FOR_ALL - 1 < time.monotonic() - began < allowed(SECONDS_FOR_ALL * 6)


def test_a_port_is_on_the_address_that_is_named(machine: Machine, kubelet: Kubelet, port: int) -> None:
    with serve(machine("two-rtx-3090"), kubelet.directory, "--metrics", f"127.0.0.1:{port}"):
        wait_until(lambda: fetch(port, "/metrics")[0] == 200)
        assert fetch(port, "/metrics", "127.0.0.2") == (0, "")


@pytest.mark.parametrize("option", PORTS)
def test_a_port_is_asked_by_the_hosts_name_and_by_names_that_are_allowed(
    machine: Machine, kubelet: Kubelet, port: int, option: str
) -> None:
    flags = (option, str(port), "--allow-host", "gpu-plugin.gpu.svc", "--allow-host=api.example")
    with serve(machine("two-rtx-3090"), kubelet.directory, *flags):
        wait_until(lambda: status(port, PATHS[option]) == 200)
        names = (socket.gethostname(), "gpu-plugin.gpu.svc", "API.example:6443", "evil.example")
        assert [fetch(port, PATHS[option], name=name)[0] for name in names] == [200, 200, 200, 421]


def test_a_name_for_no_port_is_refused(gpu_plugin: Command) -> None:
    result = gpu_plugin("serve", "--allow-host", "gpu-plugin.gpu.svc")
    assert result.returncode == 2
    assert "--allow-host: is for a port that is served; add --metrics or --health, or leave it out" in result.stderr


@pytest.mark.parametrize("option", PORTS)
@pytest.mark.parametrize("value", ["0", "65536", "eighty", "localhost:80", "127.0.0.1", "::1", ":", "1.2.3.4:"])
def test_what_is_no_port_is_refused_by_name(gpu_plugin: Command, option: str, value: str) -> None:
    result = gpu_plugin("serve", option, value)
    assert result.returncode == 2
    assert option in result.stderr
    assert "expected [ADDRESS:]PORT" in result.stderr
