"""gpu-plugin and the floor, each as a process beside a kubelet of its own."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.machine import RESOURCE, VARIABLE, Machine
from tests.bench.process import cpu_seconds
from tests.kubelet import Endpoint, Kubelet, running_kubelet
from tests.processes import BIN, FIXTURES, ROOT

#: The command line that serves a machine to the kubelet with that directory.
Contestant = Callable[[Machine, Path], list[str | Path]]

_FLOOR = "from tests.bench.floor import main; main()"  # as gpu-plugin's script does it; `python -m` imports more


@dataclass(frozen=True)
class Serving:
    """A plugin whose full list its kubelet holds: the seconds from exec to there, wall and the plugin's CPU."""

    kubelet: Kubelet
    pid: int
    seconds: float
    cpu: float

    @property
    def endpoint(self) -> Endpoint:
        return self.kubelet.endpoints[RESOURCE]

    def lists_all(self, machine: Machine) -> bool:
        return self.kubelet.healthy(RESOURCE) == tuple(sorted(machine.nodes))


def gpu_plugin(machine: Machine, kubelet_dir: Path) -> list[str | Path]:
    return [
        *(BIN / "gpu-plugin", "serve", "--sysfs", machine.sys, "--dev", machine.dev),
        *("--pci-ids", FIXTURES / "pci.ids", "--kubelet-dir", kubelet_dir),
    ]


def floor(machine: Machine, kubelet_dir: Path) -> list[str | Path]:
    answers = kubelet_dir / "answers.json"
    answers.write_text(json.dumps({"resource": RESOURCE, "variable": VARIABLE, "nodes": machine.nodes}))
    return [sys.executable, "-c", _FLOOR, kubelet_dir, answers]


@contextmanager
def serving(contestant: Contestant, machine: Machine) -> Iterator[Serving]:
    """Start it and wait until its kubelet holds the machine's full list; killed at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="gl-", dir="/tmp") as directory,
        tempfile.TemporaryFile("w+") as log,  # a pipe would cost its reader time beside the client
        running_kubelet(Path(directory)) as kubelet,
    ):
        command = contestant(machine, Path(directory))
        start = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, env={"PATH": "/usr/bin:/bin"}, stderr=log)
        try:
            one = Serving(kubelet, process.pid, 0, 0)
            kubelet.wait_until(lambda: one.lists_all(machine))
            yield Serving(kubelet, process.pid, time.perf_counter() - start, cpu_seconds(process.pid))
            assert process.poll() is None, "it ended by itself"
        except Exception as error:
            log.seek(0)
            error.add_note(f"{command}: {log.read()[-2000:]}")
            raise
        finally:
            process.kill()
            process.wait()
