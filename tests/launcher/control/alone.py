"""A VM on libvirt's test driver, served by a process of its own, so that what it costs can be counted.

As a program, `python -m tests.launcher.control.alone SOCKET DIRECTORY`: serves until its standard input ends. A line
there is Python that it executes.
"""

import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.control.served import served
from tests.bench.process import cpu_seconds, proportional_set_size
from tests.launcher.control.serving import on_test_driver
from tests.processes import ROOT
from tests.waiting import until


class Alone:
    def __init__(self, process: subprocess.Popen[str], socket: Path, log: Path) -> None:
        self.pid = process.pid
        self.socket = socket
        self._process = process
        self._log = log

    def do(self, line: str) -> None:
        """Have it execute this line, and wait until it has."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n", self.log()

    def log(self) -> list[str]:
        return self._log.read_text().splitlines()

    def threads(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def memory(self) -> float:
        """MB."""
        return proportional_set_size(self.pid) / 1e6

    def kept(self) -> float:
        """The same, without what Python and the C library have free."""
        self.do("import ctypes, gc; gc.collect(); ctypes.CDLL(None).malloc_trim(0)")
        return self.memory()

    def cpu(self) -> float:
        """Seconds."""
        return cpu_seconds(self.pid)

    def wakeups(self) -> int:
        """How often one of its threads has gone to sleep."""
        statuses = [path.read_text() for path in Path(f"/proc/{self.pid}/task").glob("*/status")]
        return sum(int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for status in statuses)


@contextmanager
def alone(directory: Path, socket: Path) -> Iterator[Alone]:
    log = directory / "log"
    with (
        log.open("w") as file,
        subprocess.Popen(
            [sys.executable, "-m", "tests.launcher.control.alone", socket, directory],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True,
        ) as process,
    ):  # fmt: skip
        until(socket.exists)
        try:
            yield Alone(process, socket, log)
        finally:
            process.kill()


def main() -> None:
    socket, directory = map(Path, sys.argv[1:])
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    names: dict[str, object]
    with on_test_driver(directory) as vm, served(socket, vm):
        names = {"vm": vm}
        for line in sys.stdin:
            exec(line, names)
            print("done", flush=True)


if __name__ == "__main__":
    main()
