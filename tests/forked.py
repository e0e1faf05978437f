"""The programs in forks of a process that has imported their commands: of a short one that is most of its time."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from pkgutil import iter_modules

import gpuvm.commands
import launcher.commands
import plugin.commands
from tests.processes import BIN, ROOT, environment, untimed
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
        process = forks.Process(target=_run, args=(_MAIN[name], call, environment(env), directory))
        process.start()
        process.join(seconds := allowed(60))
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(call, seconds)
        out, err = (file.read_text("utf-8", "backslashreplace") for file in files[1:])
        return subprocess.CompletedProcess(call, process.exitcode, out, untimed(err))


def _run(main: str, call: list[str], environ: Mapping[str, str], directory: str) -> None:
    """Be the program from here on."""
    for number, stream in enumerate(_STREAMS):
        opened = os.open(Path(directory, stream), os.O_RDWR | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(ROOT)
    sys.argv = call
    import_module(main).main()
