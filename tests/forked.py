"""The programs in forks of a process that has imported their modules, which is most of a start."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from pkgutil import iter_modules
from signal import SIGKILL
from typing import IO

import gpuvm.commands
import launcher.commands
import plugin.commands
from tests.processes import BIN, ROOT, Program, ended, environment, untimed
from tests.waiting import allowed

_MAIN = {"gpu-launcher": "launcher.__main__", "gpu-plugin": "plugin.__main__", "kubectl-gpuvm": "gpuvm.__main__"}
_STREAMS = ("stdin", "stdout", "stderr")

forks = get_context("forkserver")
forks.set_forkserver_preload(
    [
        __name__,
        *(
            module.name
            for package in (gpuvm.commands, launcher.commands, plugin.commands)
            for module in iter_modules(package.__path__, f"{package.__name__}.")
        ),
        "tests.preloaded",
    ]
)


def forked(
    name: str, *arguments: str | Path, env: Mapping[str, str] | None = None, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """What `tests.processes.finished` does; what it returns is the same."""
    call = [str(BIN / name), *map(str, arguments)]
    with tempfile.TemporaryDirectory() as directory:
        files = [Path(directory, stream) for stream in _STREAMS]
        files[0].write_text(stdin or "")
        process = forks.Process(target=_run, args=(call, environment(env), directory))
        process.start()
        process.join(seconds := allowed(60))
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(call, seconds)
        out, err = (file.read_text("utf-8", "backslashreplace") for file in files[1:])
        return subprocess.CompletedProcess(call, process.exitcode, out, untimed(err))


class Fork:
    """A program in a fork, as subprocess.Popen has one; `first` is called before it in its process."""

    def __init__(
        self,
        name: str,
        *arguments: str | Path,
        env: Mapping[str, str] | None = None,
        first: Callable[[], object] | None = None,
    ) -> None:
        call = [str(BIN / name), *map(str, arguments)]
        reader, writer = forks.Pipe(duplex=False)
        with reader, writer:
            self._process = forks.Process(target=_start, args=(call, environment(env), writer, first))
            self._process.start()
            self.stderr: IO[str] = os.fdopen(os.dup(reader.fileno()), encoding="utf-8", errors="backslashreplace")

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int:
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(SIGKILL)


@contextmanager
def running(
    name: str, *arguments: str | Path, env: Mapping[str, str] | None = None, first: Callable[[], object] | None = None
) -> Iterator[Program]:
    """What `tests.processes.running` does, without the imports, which are most of a start."""
    with ended(Fork(name, *arguments, env=env, first=first)) as program:
        yield program


def _start(call: list[str], environ: Mapping[str, str], stderr: Connection, first: Callable[[], object] | None) -> None:
    os.dup2(stderr.fileno(), 2)
    stderr.close()
    if first is not None:
        first()
    _become(call, environ)


def _run(call: list[str], environ: Mapping[str, str], directory: str) -> None:
    for number, stream in enumerate(_STREAMS):
        opened = os.open(Path(directory, stream), os.O_RDWR | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    _become(call, environ)


def _become(call: list[str], environ: Mapping[str, str]) -> None:
    """Be the program from here on."""
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(ROOT)
    sys.argv = call
    name = Path(call[0]).name
    Path("/proc/self/comm").write_text(name)
    import_module(_MAIN[name]).main()
