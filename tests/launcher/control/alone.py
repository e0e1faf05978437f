"""A VM on libvirt's test driver, served by a process of its own, so that what it costs can be counted.

As a program, `python -m tests.launcher.control.alone SOCKET DIRECTORY`: serves until its standard input ends. A line
there is Python that it executes.
"""

import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import libvirt

from launcher.control.listener import serving_control
from tests.bench.process import cpu_seconds
from tests.launcher.control.serving import on_test_driver
from tests.processes import ROOT


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
        """MB that are its own. What it shares counts less when other processes share it, too."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("\nRssAnon:")[2].split()[0]) * 1024 / 1e6

    def kept(self) -> float:
        """The same, without what Python and the C library have free."""
        self.do("import ctypes, gc; gc.collect(); ctypes.CDLL(None).malloc_trim(0)")
        return self.memory()

    def sleeps(self, seconds: float) -> bool:
        """Whether none of its threads does anything in that time."""
        before = self._work()
        time.sleep(seconds)
        return self._work() == before

    def _work(self) -> tuple[float, int]:
        """The seconds of CPU that it has had, and how often one of its threads has gone to sleep."""
        statuses = [path.read_text() for path in Path(f"/proc/{self.pid}/task").glob("*/status")]
        naps = sum(int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for status in statuses)
        return cpu_seconds(self.pid), naps


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
        launcher = Alone(process, socket, log)
        launcher.do("pass")  # it serves, or has said why not
        try:
            yield launcher
        finally:
            process.kill()


def main() -> None:
    socket, directory = map(Path, sys.argv[1:])
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    libvirt.registerErrorHandler(lambda context, error: None, None)  # as launcher.runtime.guest does
    names: dict[str, object]
    with on_test_driver(directory) as vm, serving_control(socket, vm):
        names = {"vm": vm}
        for line in sys.stdin:
            exec(line, names)
            print("done", flush=True)


if __name__ == "__main__":
    main()
