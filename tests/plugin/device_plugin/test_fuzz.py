"""Whoever reaches one of the plugin's three sockets may send anything: its gRPC socket, metrics, health."""

import random
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from plugin.device_plugin.monitoring import LIVE, READY
from plugin.kubelet_api.v1beta1 import deviceplugin_pb2 as api
from tests.conftest import Machine
from tests.kubelet import Kubelet
from tests.plugin.daemon import BOTH, ITSELF, RTX_3090, at_rest, fetch, footprint, free_port, serve, status, wait_until
from tests.waiting import allowed

#: Not ListAndWatch: whoever ends one is taken for the kubelet, and the plugin registers again.
METHODS = ("Allocate", "GetPreferredAllocation", "GetDevicePluginOptions", "PreStartContainer", "Nothing")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: node\r\nAccept: text/plain\r\nContent-Length: 0\r\n\r\n"
ALLOCATE: bytes = api.AllocateRequest(
    container_requests=[api.ContainerAllocateRequest(devices_ids=list(BOTH))]
).SerializeToString()
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends RST

SECONDS = 10


class Fuzzer:
    """Draws inputs, and sends them; `faults` is how many may have been worth a line of the log."""

    def __init__(self, seed: int, unix: Path, ports: tuple[int, int], channel: grpc.Channel) -> None:
        self.draw = random.Random(seed)
        self.faults = 0
        self._unix = unix
        self._ports = ports
        self._channel = channel

    def send_one(self) -> None:
        self.draw.choice([self._bytes_to_the_socket, self._bytes_to_a_port, self._message, self._reset_call])()

    def _mutated(self, whole: bytes) -> bytes:
        data = bytearray(whole)
        for _ in range(self.draw.randint(0, 4)):
            at = self.draw.randrange(len(data) + 1)
            match self.draw.randrange(4):
                case 0:
                    data[at : at + 1] = self.draw.randbytes(1)
                case 1:
                    del data[at : at + self.draw.randint(1, 8)]
                case 2:
                    data[at:at] = self.draw.randbytes(self.draw.randint(1, 64))
                case _:
                    data[at:at] = data[: self.draw.randint(0, 64)]
        return bytes(data)

    def _frames(self) -> bytes:
        frames = b""
        for _ in range(self.draw.randint(0, 8)):
            payload = self.draw.randbytes(self.draw.choice([0, 4, 5, 8, 100]))
            length = len(payload) if self.draw.random() < 0.8 else self.draw.randrange(1 << 24)
            kind, flags = self.draw.randrange(12), self.draw.randrange(256)
            frames += length.to_bytes(3) + bytes([kind, flags]) + self.draw.randrange(8).to_bytes(4) + payload
        return frames

    def _bytes_to_the_socket(self) -> None:
        self.faults += 1
        data = self.draw.choice([self.draw.randbytes(200), self._mutated(PREFACE), PREFACE + self._frames()])
        with socket.socket(socket.AF_UNIX) as caller:
            caller.settimeout(allowed(SECONDS))
            with suppress(OSError):
                caller.connect(str(self._unix))
                caller.sendall(data)
                if self.draw.random() < 0.1:
                    caller.recv(100)

    def _bytes_to_a_port(self) -> None:
        data = self.draw.choice([self.draw.randbytes(200), self._mutated(REQUEST), REQUEST[:30], b"X" * 20_000])
        with socket.socket() as caller:
            caller.settimeout(allowed(SECONDS))
            with suppress(OSError):
                caller.connect(("127.0.0.1", self.draw.choice(self._ports)))
                caller.sendall(data)
                if self.draw.random() < 0.3:
                    caller.shutdown(socket.SHUT_WR)
                    caller.recv(100)
                elif self.draw.random() < 0.5:
                    caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    def _message(self) -> None:
        self.faults += 1
        message = self._mutated(self.draw.choice([ALLOCATE, b"", self.draw.randbytes(50)]))
        with suppress(grpc.RpcError):
            self._call(message).result(timeout=allowed(2 * SECONDS))

    def _reset_call(self) -> None:
        self.faults += 1
        call = self._call(self.draw.choice([ALLOCATE, b""]))
        if self.draw.random() < 0.3:
            with suppress(grpc.RpcError, grpc.FutureTimeoutError):
                call.result(timeout=0.001)
        call.cancel()

    def _call(self, message: bytes) -> Any:
        call: Any = self._channel.unary_unary(f"/v1beta1.DevicePlugin/{self.draw.choice(METHODS)}")
        return call.future(message, timeout=allowed(SECONDS))


def test_whatever_is_sent_to_its_sockets_the_plugin_goes_on(
    machine: Machine, kubelet: Kubelet, pytestconfig: pytest.Config
) -> None:
    inputs = 10_000 if pytestconfig.getoption("--thorough") else 400
    ports = free_port(), free_port()
    arguments = ("--metrics", str(ports[0]), "--health", str(ports[1]), "--rescan", "60")
    with serve(machine("two-rtx-3090"), kubelet.directory, *arguments, within=ITSELF) as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        wait_until(lambda: status(ports[1], READY) == 200)
        unix = kubelet.directory / kubelet.endpoints[RTX_3090].name
        with grpc.insecure_channel(f"unix:{unix}", options=[("grpc.enable_http_proxy", 0)]) as channel:
            seed = random.randrange(1 << 32)
            fuzzer = Fuzzer(seed, unix, ports, channel)
            lines = len(plugin.log)
            for number in range(inputs):
                fuzzer.send_one()
                if number == inputs // 5:
                    # What is made once is made now: threads of grpc's, pages of the allocator's.
                    before = footprint(plugin)
                if number % 20 == 0:
                    kubelet.allocate_devices(RTX_3090, [BOTH[0]], "default/pod")
                    assert fetch(ports[1], LIVE) == (200, "ok\n"), f"{seed=} {number=}"
                    assert status(ports[0], "/metrics") == 200, f"{seed=} {number=}"
        after = at_rest(plugin, at_most=before.descriptors)
        print(f"{seed=} {inputs=} {before=} {after=} lines={len(plugin.log) - lines} faults={fuzzer.faults}")
        assert kubelet.healthy(RTX_3090) == BOTH
        assert after.threads <= before.threads + 2
        assert after.memory < before.memory + 4
        assert not [line for line in plugin.log if "Traceback" in line], f"{seed=}"
        said = plugin.log[lines:]
        allocated = [line for line in said if line.startswith("INFO allocated ")]
        assert len(said) - len(allocated) <= fuzzer.faults, f"{seed=}"
