"""Callers that nobody meant: raw bytes, requests that are changed, cut off, half made or too long, floods, and valid
requests between them, all at the socket of one launcher.

What comes of each is an answer or a connection that ends; what has not been broken is answered, and nothing of the rest
stays. Three hundred by default, twenty thousand with `--thorough`; `-s` shows the figures.
"""

import json
import random
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from launcher.control import messages
from tests.conftest import Command
from tests.launcher.changed_bytes import changed
from tests.launcher.control import lines
from tests.launcher.control.alone import alone
from tests.waiting import until

# The test's own kill is the last request of all: without its domain the launcher has nothing to ask libvirt.
_METHODS = (*(method for method in messages.METHODS if method != "kill"), "nothing", "", "Kill")


class Caller:
    """Makes one input after the other, each from the random numbers that it is given."""

    def __init__(self, path: Path, dice: random.Random) -> None:
        self._path = path
        self._dice = dice
        self._kinds = (
            self.raw_bytes,
            self.random_values,
            self.changed_requests,
            self.half_requests,
            self.valid_requests,
            self.several_lines,
            self.long_lines,
            self.many_connections,
            self.valid_requests,
        )

    def input(self, number: int) -> None:
        self._kinds[number % len(self._kinds)]()

    @contextmanager
    def _caller(self) -> Iterator[lines.Raw]:
        with lines.raw(self._path) as caller, suppress(OSError):
            caller.socket.settimeout(0.05)
            yield caller

    def _send(self, data: bytes) -> None:
        """Send it, read something of what comes, or don't; and be gone, or say so first."""
        with self._caller() as caller:
            caller.send(data)
            if self._dice.random() < 0.5:
                caller.socket.recv(1 << self._dice.randint(0, 16))

    def _request(self) -> bytes:
        fields: dict[str, Any] = self._dice.choice(
            [{}, {"seconds": 1}, {"seconds": 1, "path": "true", "arguments": ["a"]}]
        )
        return lines.request(self._dice.choice(_METHODS), **fields)

    def raw_bytes(self) -> None:
        start = self._dice.choice([b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"{", b'{"version": 1, "method": "'])
        self._send(start + self._dice.randbytes(self._dice.randint(0, 5000)) + self._dice.choice([b"", b"\n"]))

    def random_values(self) -> None:
        value = {name: self._value(3) for name in ("version", "method", "request") if self._dice.random() < 0.9}
        if self._dice.random() < 0.8:
            value |= {"version": 1, "method": self._dice.choice(_METHODS)}
        if self._dice.random() < 0.5:
            value["request"] = {name: self._value(2) for name in ("seconds", "path", "arguments", "more")}
        self._send(json.dumps(value).encode() + b"\n")

    def _value(self, depth: int) -> Any:
        plain: list[Any] = [None, True, -1, 0, 1 << 70, 1e300, "", "\ud800\0\n", "x" * 3000, 10**400]
        nested = [[self._value(depth - 1)] * 3, {"seconds": self._value(depth - 1)}] if depth else []
        return self._dice.choice(plain + nested)

    def changed_requests(self) -> None:
        self._send(changed(self._request(), self._dice, empty=b"{"))

    def half_requests(self) -> None:
        data = self._request()
        with self._caller() as caller:
            caller.send(data[: self._dice.randrange(len(data))])
            if self._dice.random() < 0.5:
                caller.socket.recv(1)

    def several_lines(self) -> None:
        with self._caller() as caller:
            for _ in range(self._dice.randint(2, 50)):
                caller.send(self._request())
            caller.socket.recv(1 << 16)

    def long_lines(self) -> None:
        part = self._dice.choice([b"[", b" ", b"9", b'{"a":', b"\xff", b"\n"])
        self._send(b'{"version": 1, "method": ' + part * self._dice.choice([60_000, 70_000, 500_000]) + b"\n")

    def many_connections(self) -> None:
        with ExitStack() as stack:
            for _ in range(self._dice.randint(2, 50)):
                caller = stack.enter_context(self._caller())
                if self._dice.random() < 0.5:
                    caller.send(self._request())

    def valid_requests(self) -> None:
        call = lines.Caller(self._path)
        for method in ("state", "xml", "pause", "resume"):
            assert call(method) is not None


def test_callers_that_nobody_meant_leave_nothing(
    tmp_path: Path, short_dir: Path, gpu_launcher: Command, pytestconfig: pytest.Config
) -> None:
    inputs = 20_000 if pytestconfig.getoption("--thorough") else 300
    with alone(tmp_path, short_dir / "sock") as launcher:
        descriptors = launcher.descriptors() + 3  # the event loop's
        caller = Caller(launcher.socket, random.Random(1))
        for number in range(200):
            caller.input(number)
        until(lambda: launcher.descriptors() == descriptors)
        kept, threads, start = launcher.kept(), launcher.threads(), time.monotonic()
        most_threads, most_memory = 0, 0.0
        for number in range(inputs):
            caller.input(number)
            most_threads = max(most_threads, launcher.threads())
            if number % 100 == 0:
                most_memory = max(most_memory, launcher.memory())
        seconds = time.monotonic() - start
        until(lambda: (launcher.threads(), launcher.descriptors()) == (threads, descriptors))
        still_kept = launcher.kept()
        print(
            f"{inputs} inputs in {seconds:.0f} s; {descriptors} descriptors, also after; {threads} threads at first, "
            f"at most {most_threads}; memory {kept:.1f} MB, at most {most_memory:.1f}, {still_kept:.1f} in the end"
        )
        launcher.do("assert vm._subscribers == []")
        assert gpu_launcher("ctl", "state", "--socket", launcher.socket).stdout == "lab/vm: running\n"
        assert gpu_launcher("ctl", "kill", "--socket", launcher.socket).returncode == 0
        faults = [line for line in launcher.log() if not line.startswith("INFO lab/vm has been ")]
    print(f"{len(faults)} lines about faults, such as", *faults[:: len(faults) // 10 + 1], sep="\n")
    assert most_threads <= threads + 4
    assert most_memory - kept < 20
    assert still_kept - kept < 3
    assert [line for line in faults if not re.match("(WARNING|ERROR) the control socket: ", line)] == []
    assert len(faults) <= seconds + 10
