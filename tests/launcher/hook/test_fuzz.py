"""Callers that nobody meant: raw bytes, calls that are changed, cut off, reset or half made, floods, and valid calls
between them, all at the socket of one hook.

What comes of each is an answer or a connection that ends; what has not been broken is answered, and nothing of the rest
stays. Three hundred by default, twenty thousand with `--thorough`; `-s` shows the figures.
"""

import random
import re
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from h2.exceptions import ProtocolError

from tests.launcher.changed_bytes import changed
from tests.launcher.hook.raw import INFO, Requests, frame, message, raw
from tests.launcher.hook.test_connections import Hook
from tests.processes import running
from tests.waiting import until

_CALLBACKS = "/kubevirt.hooks.v1alpha3.Callbacks"
_METHODS = (
    *(INFO, f"{_CALLBACKS}/OnDefineDomain", f"{_CALLBACKS}/PreCloudInitIso", f"{_CALLBACKS}/Shutdown"),
    *("/nowhere/Nothing", "/", "*"),
)
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0)
_KINDS = {"data": 0, "headers": 1, "priority": 2, "reset": 3, "settings": 4, "ping": 6, "window": 8, "continuation": 9}


class Caller:
    """Makes one input after the other, each from the random numbers that it is given."""

    def __init__(self, path: Path, dice: random.Random) -> None:
        self._path = path
        self._dice = dice
        self._kinds = (
            self.raw_bytes,
            self.random_frames,
            self.changed_calls,
            self.reset_calls,
            self.half_calls,
            self.valid_calls,
            self.several_messages,
            self.floods,
            self.many_connections,
            self.valid_calls,
        )

    def input(self, number: int) -> None:
        self._kinds[number % len(self._kinds)]()

    def _methods(self, most: int) -> list[str]:
        return self._dice.choices(_METHODS, k=self._dice.randint(1, most))

    def _send(self, data: bytes) -> None:
        """Send it, read something of what comes, or don't; and be gone, or say so first."""
        with raw(self._path) as caller:
            caller.socket.settimeout(0.05)
            with suppress(OSError):
                caller.socket.sendall(data)
                if self._dice.random() < 0.5:
                    caller.socket.recv(1 << self._dice.randint(0, 16))

    def raw_bytes(self) -> None:
        start = self._dice.choice([b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n"])
        self._send(start + self._dice.randbytes(self._dice.randint(0, 5000)))

    def random_frames(self) -> None:
        frames = [
            frame(
                self._dice.choice([*_KINDS.values(), self._dice.randint(0, 255)]),
                self._dice.choice([0, 1, 4, 5, 8, 0x20, self._dice.randint(0, 255)]),
                self._dice.choice([0, 1, 3, 2, 1 << 31, self._dice.getrandbits(32)]),
                self._dice.randbytes(self._dice.choice([0, 4, 5, 8, 100, 20_000])),
            )
            for _ in range(self._dice.randint(1, 30))
        ]
        self._send(_GREETING + b"".join(frames))

    def changed_calls(self) -> None:
        self._send(changed(self._recorded(self._methods(4)), self._dice, empty=b"P"))

    def _recorded(self, methods: list[str]) -> bytes:
        requests = Requests()
        for method in methods:
            requests.call(method)
        return requests.h2.data_to_send()

    def reset_calls(self) -> None:
        with raw(self._path) as caller, suppress(OSError, ProtocolError):
            caller.socket.settimeout(0.05)
            for method in self._methods(60):
                call = caller.call(method) if self._dice.random() < 0.7 else caller.open(method)
                if self._dice.random() < 0.2:
                    caller.flush()
                caller.h2.reset_stream(call, self._dice.randint(0, 13))
            caller.flush()
            if self._dice.random() < 0.5:
                caller.hear()

    def half_calls(self) -> None:
        with raw(self._path) as caller, suppress(OSError, ProtocolError):
            caller.socket.settimeout(0.05)
            for method in self._methods(12):
                headers = [("x" * self._dice.randint(1, 9), "y" * self._dice.choice([0, 10, 3000, 9000]))]
                extra = [("grpc-timeout", self._dice.choice(["1n", "9" * 4000 + "S", "x", "1H"])), ("a-bin", "abcde")]
                call = caller.open(method, *headers, *self._dice.sample(extra, self._dice.randint(0, 2)))
                part = self._dice.choice([b"", b"\0\0", b"\0\xff\xff\xff\xff", b"\1\0\0\0\0", message(b"x" * 900)[:-1]])
                caller.h2.send_data(call, part, end_stream=self._dice.random() < 0.3)
            caller.flush()
            if self._dice.random() < 0.5:
                caller.hear()

    def several_messages(self) -> None:
        with raw(self._path) as caller, suppress(OSError, ProtocolError):
            caller.socket.settimeout(0.05)
            call = caller.open(self._methods(1)[0])
            for _ in range(self._dice.randint(2, 50)):
                caller.h2.send_data(call, message(self._dice.randbytes(self._dice.randint(0, 1000))))
                caller.flush()
            caller.hear()

    def floods(self) -> None:
        kind, payload = self._dice.choice(
            [("ping", bytes(8)), ("settings", b""), ("window", b"\0\0\0\1"), ("priority", bytes(5)), ("data", b"")]
        )
        stream = 0 if kind in ("ping", "settings", "window") else 1
        call = self._recorded(self._methods(1)) if stream else _GREETING
        self._send(call + frame(_KINDS[kind], 0, stream, payload) * self._dice.choice([100, 3000]))

    def many_connections(self) -> None:
        with ExitStack() as stack, suppress(OSError):
            for _ in range(self._dice.randint(2, 50)):
                caller = stack.enter_context(raw(self._path))
                if self._dice.random() < 0.5:
                    caller.call(self._methods(1)[0])
                    caller.flush()

    def valid_calls(self) -> None:
        with raw(self._path) as caller:
            for method in (INFO, f"{_CALLBACKS}/PreCloudInitIso", f"{_CALLBACKS}/Shutdown", INFO):
                call = caller.call(method)
                caller.flush()
                assert caller.status(call) == (0, ""), method


def test_callers_that_nobody_meant_leave_nothing(short_dir: Path, pytestconfig: pytest.Config) -> None:
    inputs = 20_000 if pytestconfig.getoption("--thorough") else 300
    path = short_dir / "a.sock"
    with running("gpu-launcher", "hook", "--socket", path, "--sysfs", "/sys") as program:
        program.wait_for_line("is there for KubeVirt")
        hook = Hook(program, path)
        hook.has_imported()
        descriptors = hook.descriptors()
        caller = Caller(path, random.Random(1))
        for number in range(200):
            caller.input(number)
        until(lambda: hook.descriptors() == descriptors)
        kept, threads, start = hook.memory(), hook.threads(), time.monotonic()
        most_threads, most_memory = 0, 0.0
        for number in range(inputs):
            caller.input(number)
            most_threads = max(most_threads, hook.threads())
            if number % 100 == 0:
                most_memory = max(most_memory, hook.memory())
        seconds = time.monotonic() - start
        until(lambda: (hook.threads(), hook.descriptors()) == (threads, descriptors))
        caller.valid_calls()
        # What KubeVirt hears of a domain or a VMI that is none is in the log, too.
        faults = [line for line in hook.log() if not line.startswith(("ERROR the domain: ", "ERROR the VMI: "))]
    print(
        f"{inputs} inputs in {seconds:.0f} s; {descriptors} descriptors, also after; {threads} threads at first, "
        f"at most {most_threads}; memory {kept:.1f} MB, at most {most_memory:.1f}"
    )
    print(f"{len(faults)} lines about faults, such as", *faults[:: len(faults) // 10 + 1], sep="\n")
    assert most_threads <= threads + 4
    assert most_memory - kept < 20
    assert [line for line in faults if not re.match("(WARNING|ERROR) the hook's socket: ", line)] == []
    assert len(faults) <= seconds + 10
