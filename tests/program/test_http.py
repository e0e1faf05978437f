"""By which names a port may be asked: a web page whose name leads to the port's address gets nothing."""

import asyncio
import socket

import pytest

from program.http import Answer, serving
from program.ports import HTTPPort, host_name, reached_by

NAMES = frozenset({"gpu-plugin-x7k2p", "gpu-plugin.gpu.svc"})
REACHED = (
    *("127.0.0.1", "10.0.0.7:8080", "[::1]:8081", "[fd00::7]"),
    *("localhost:8081", "LocalHost", "localhost.", "gpu-plugin-x7k2p:8081", "gpu-plugin.gpu.svc"),
)
MISDIRECTED = (
    *(
        "evil.example",
        "evil.example:8081",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "gpu-plugin.gpu.svc.evil",
    ),
    *("", ":80", "[", "[evil.example]:80", "evil.example@127.0.0.1", "\xe9"),
)


def answer_to(request: str) -> bytes:
    """What a server of these names answers to the bytes of a request."""

    async def ask() -> bytes:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            async with serving(listener, {"/": lambda: Answer(200, b"secret")}, NAMES):
                reader, writer = await asyncio.open_connection(*listener.getsockname())
                writer.write(request.encode("latin-1"))
                answer = await reader.read()
                writer.close()
                return answer

    return asyncio.run(ask())


@pytest.mark.parametrize("host", REACHED)
def test_addresses_and_its_own_names_reach_it(host: str) -> None:
    assert answer_to(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").endswith(b"\r\n\r\nsecret")


@pytest.mark.parametrize("host", MISDIRECTED)
@pytest.mark.parametrize("path", ["/", "/nothing"])
def test_another_name_is_told_the_flag_for_it(host: str, path: str) -> None:
    answer = answer_to(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 421 ")
    assert answer.endswith(
        b"\r\n\r\nthis is no name of this server's; expected an IP address, localhost, the pod's name, or what the "
        b"server's flag --allow-host names\n"
    )


def test_who_names_no_host_is_no_browser_and_two_names_are_none() -> None:
    assert answer_to("GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    assert answer_to("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_a_port_has_its_hosts_name_and_those_that_are_given() -> None:
    port = reached_by(HTTPPort(None, 8080), "Node-1", None, "GPU.svc")
    assert port.names == {socket.gethostname().lower(), "node-1", "gpu.svc"}


@pytest.mark.parametrize("word", ["", "http://gpu", "gpu:8080", "*.svc", ".svc", "gpu.", "a b", "x" * 254])
def test_what_is_no_name_of_a_host_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="expected a DNS name without a port"):
        host_name(word)
