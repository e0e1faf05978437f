"""A caller of the control socket: its lines are not made by our modules, and need not keep to the protocol."""

import json
import socket
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.waiting import allowed

END = {"end": True}


def request(method: str, **fields: Any) -> bytes:
    return json.dumps({"version": 1, "method": method, "request": fields}).encode() + b"\n"


class Raw:
    """A connection."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(allowed(30))
        self.socket.connect(str(path))
        self._lines = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, method: str, **fields: Any) -> None:
        self.send(request(method, **fields))

    def line(self) -> dict[str, Any] | None:
        """The next line; None where the connection has ended."""
        line = self._lines.readline()
        assert not line or line.endswith(b"\n"), line
        return json.loads(line) if line else None

    def is_hung_up_on(self, seconds: float = 30) -> bool:
        """Whether the connection ends in that time, whatever comes before."""
        self.socket.settimeout(seconds)
        try:
            while self.socket.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except ConnectionError:  # the launcher has not read all
            return True
        return True

    def close(self) -> None:
        self._lines.close()
        self.socket.close()


@contextmanager
def raw(path: Path) -> Iterator[Raw]:
    caller = Raw(path)
    try:
        yield caller
    finally:
        caller.close()


class Refused(Exception):
    """The launcher's problems, each with its subject, what is wrong, and the fix."""

    def __init__(self, problems: list[dict[str, str]]) -> None:
        self.problems = [(each["subject"], each["wrong"], each["fix"]) for each in problems]
        super().__init__(self.problems)


class Caller:
    """Asks one thing after the other, each on a connection of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, method: str, **fields: Any) -> dict[str, Any]:
        (answer,) = self.stream(method, **fields)
        return answer

    def stream(self, method: str, **fields: Any) -> Generator[dict[str, Any]]:
        """Yield the answers; Refused where the launcher refuses."""
        with raw(self.path) as caller:
            caller.ask(method, **fields)
            while (line := caller.line()) != END:
                assert line is not None, "the connection has ended"
                if "problems" in line:
                    raise Refused(line["problems"])
                yield line["answer"]

    def problem(self, method: str, **fields: Any) -> tuple[str, str, str]:
        """How a request is refused."""
        try:
            answers = [*self.stream(method, **fields)]
        except Refused as refused:
            (problem,) = refused.problems
            return problem
        raise AssertionError(answers)
