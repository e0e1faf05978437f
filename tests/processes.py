"""The two programs as processes: what they log, line by line, while they run."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from tests.waiting import allowed, until

ROOT = Path(__file__).parent.parent
FIXTURES = ROOT / "tests" / "fixtures"
BIN = Path(sys.executable).parent


def environment(given: Mapping[str, str] | None) -> Mapping[str, str]:
    """The whole environment of a program of ours: the tester's own PCI_RESOURCE_* must not leak in."""
    return {"PATH": os.environ["PATH"], **(given or {})}


def _call(
    name: str, arguments: tuple[str | Path, ...], environ: Mapping[str, str] | None, within: tuple[str | Path, ...] = ()
) -> dict[str, Any]:
    """What subprocess needs to call a program of ours from the checkout, with that whole environment; `within` is a
    command that execs it."""
    call = {"args": [*within, BIN / name, *map(str, arguments)], "cwd": ROOT, "env": environment(environ)}
    return {**call, "encoding": "utf-8", "errors": "backslashreplace"}


_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ")


def untimed(text: str) -> str:
    """A log of text without its times."""
    return "".join(_TIME.sub("", line, count=1) for line in text.splitlines(keepends=True))


class Process(Protocol):
    """What is used here of subprocess.Popen."""

    @property
    def pid(self) -> int: ...
    @property
    def stderr(self) -> IO[str] | None: ...
    def poll(self) -> int | None: ...
    def wait(self) -> int: ...
    def send_signal(self, signum: int, /) -> None: ...
    def kill(self) -> None: ...


class Program:
    """A running program of ours, and what it has written to stderr so far, without the times of a log."""

    def __init__(self, process: Process) -> None:
        self.log: list[str] = []
        self.process = process
        self._logged = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            for line in stderr:
                with self._logged:
                    self.log.append(untimed(line).rstrip("\n"))
                    self._logged.notify_all()

    def wait_for_line(self, text: str, seconds: float = 120) -> None:
        def is_there() -> bool:
            with self._logged:
                return self._logged.wait_for(lambda: any(text in line for line in self.log), 1.0)

        until(is_there, seconds, lambda: f"no {text!r} in {self.log}")

    def send(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)

    def end(self, seconds: float = 60) -> int:
        """Wait for its end; the exit code. All of its log is there then."""
        until(lambda: self.process.poll() is not None, seconds, lambda: self.log)
        self._reader.join(allowed(seconds))
        return self.process.wait()

    def kill(self) -> None:
        self.process.kill()
        self.end()


@contextmanager
def running(
    name: str, *arguments: str | Path, env: Mapping[str, str] | None = None, within: tuple[str | Path, ...] = ()
) -> Iterator[Program]:
    """`gpu-plugin` or `gpu-launcher` with these arguments and this whole environment; killed at the end."""
    process: subprocess.Popen[str] = subprocess.Popen(**_call(name, arguments, env, within), stderr=subprocess.PIPE)
    with ended(process) as program:
        yield program


@contextmanager
def ended(process: Process) -> Iterator[Program]:
    """The program of this process, killed at the end."""
    program = Program(process)
    try:
        yield program
    finally:
        program.kill()


def finished(
    name: str, *arguments: str | Path, env: Mapping[str, str] | None = None, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """The same, run to its end; `stdin` is what it reads there."""
    done = subprocess.run(
        **_call(name, arguments, env), input=stdin, capture_output=True, timeout=allowed(60), check=False
    )
    done.stderr = untimed(done.stderr)
    return done


def kill_all(pids: Iterable[int]) -> None:
    """Kill these processes; one may go with another."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True)
class UnixSocket:
    """A row of proc_pid_net(5), `unix`."""

    path: str
    listens: bool  # __SO_ACCEPTCON in Linux's include/linux/net.h
    is_connected: bool  # SS_CONNECTED


def unix_sockets(pid: int) -> Iterator[UnixSocket]:
    """Those with a path in the network namespace of a process."""
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        _, _, _, flags, _, state, _, *path = line.split()
        if path:
            yield UnixSocket(path[0], bool(int(flags, 16) & 1 << 16), state == "03")


def children(pid: int) -> tuple[int, ...]:
    """The processes that the first thread of a process has forked."""
    return tuple(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def holds(pid: int, signum: signal.Signals) -> bool:
    """Whether a process blocks the signal, which then waits and is not lost."""
    return _has(pid, "SigBlk", signum)


def hears(pid: int, signum: signal.Signals) -> bool:
    """Whether the signal reaches a process, now or when it asks: not what the kernel does where nobody has a say."""
    return holds(pid, signum) or _has(pid, "SigCgt", signum)


def _has(pid: int, mask: str, signum: signal.Signals) -> bool:
    """By proc_pid_status(5)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition(f"{mask}:")[2].split()[0], 16) >> signum - 1 & 1)
