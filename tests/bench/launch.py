"""gpu-launcher run, from exec to a running guest and from SIGTERM to nothing, beside libvirt's embedded driver in bare
Python (tests/bench/bare.py): the same domain, in turn, in a root of its own each.

`cold` is the first start in a root, in which libvirt asks QEMU what it can; `warm` any later one. The CPU is QEMU's
own: not every machine's KVM runs every guest.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.process import cpu_seconds, proportional_set_size
from tests.bench.table import Beside, Line, beside, table, within_times
from tests.processes import BIN, ROOT, children

_COLD, _WARM = 5, 7
_IDLE = 30  # seconds
_SETTLED = 2  # seconds
_VM = """\
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: bench, uid: 3d0a4b7e-52f5-4f0e-8f4c-0d3f7a1f5c11}
spec:
  terminationGracePeriodSeconds: 0
  domain:
    cpu: {cores: 1, model: qemu64}
    memory: {guest: 128Mi}
    devices:
      autoattachGraphicsDevice: false
      autoattachMemBalloon: false
      autoattachPodInterface: false
      autoattachSerialConsole: false
"""


@dataclass(frozen=True)
class Launcher:
    """A launcher whose guest runs: the seconds from exec to there."""

    process: subprocess.Popen[str]
    seconds: float

    def processes(self) -> Sequence[int]:
        """It and its children, but for QEMU."""
        pid = self.process.pid
        names = {child: Path(f"/proc/{child}/comm").read_text() for child in children(pid)}
        return (pid, *(child for child, name in names.items() if not name.startswith("qemu-system")))

    def memory(self) -> float:
        """Bytes."""
        return sum(map(proportional_set_size, self.processes()))

    def cpu(self) -> float:
        """Seconds."""
        return sum(map(cpu_seconds, self.processes()))

    def stop(self) -> float:
        """Seconds until nothing of it is left."""
        start = time.perf_counter()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait()
        seconds = time.perf_counter() - start
        assert code == 0, code
        return seconds


@dataclass(frozen=True)
class Place:
    """Where one of the two has its VM, and how it is called there; `stopped` are the seconds of each of its ends."""

    name: str
    directory: Path
    stopped: list[float] = field(default_factory=list)

    def command(self) -> list[str | Path]:
        manifest = self.directory.parent / "vm.yaml"
        root = self.directory / "root"
        if self.name == "ours":
            return [
                BIN / "gpu-launcher",
                "run",
                "--vm",
                manifest,
                "--emulation",
                "--connect",
                f"qemu:///embed?root={root}",
            ]
        return [sys.executable, "-m", "tests.bench.bare", root, self.directory.parent / "domain.xml"]

    @contextmanager
    def launched(self) -> Iterator[Launcher]:
        start = time.perf_counter()
        process = subprocess.Popen(self.command(), cwd=ROOT, env=_ENVIRON, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        said: list[str] = []
        with process.stderr:
            for line in process.stderr:
                said.append(line)
                if "is running" in line:
                    break
            else:
                raise AssertionError("".join(said))
            launcher = Launcher(process, time.perf_counter() - start)
            try:
                yield launcher
                self.stopped.append(launcher.stop())
            finally:
                process.kill()
                process.wait()


_ENVIRON = {"PATH": os.environ["PATH"]}


@contextmanager
def places() -> Iterator[tuple[Place, Place]]:
    """Ours and the floor's, with the same domain for both."""
    with tempfile.TemporaryDirectory(prefix="gl-", dir="/tmp") as directory:
        manifest = Path(directory) / "vm.yaml"
        manifest.write_text(_VM)
        xml = subprocess.check_output(
            [BIN / "gpu-launcher", "render", manifest, "--env", "NOTHING=1", "--emulation"], env=_ENVIRON
        )
        (Path(directory) / "domain.xml").write_bytes(xml)
        found = [Place(name, Path(directory) / name) for name in ("ours", "floor")]
        for place in found:
            (place.directory / "root").mkdir(parents=True)  # as a pod has it
        yield found[0], found[1]


def lines() -> Iterator[Line]:
    cold, warm, stop = Beside(), Beside(), Beside()
    for _ in range(_COLD):
        with places() as both:
            cold.add(*(_started(place) * 1e3 for place in both))
    with places() as both:
        for place in both:
            _started(place)
            place.stopped.clear()
        for _ in range(_WARM):
            warm.add(*(_started(place) * 1e3 for place in both))
        for ours, floor in zip(*(place.stopped for place in both), strict=True):
            stop.add(ours * 1e3, floor * 1e3)
        with both[0].launched() as ours, both[1].launched() as floor:
            time.sleep(_SETTLED)
            memory = Beside([ours.memory() / 1e6], [floor.memory() / 1e6])
            _ask(both[0])
            time.sleep(_SETTLED)
            asked = Beside([ours.memory() / 1e6], [floor.memory() / 1e6])
            before = ours.cpu(), floor.cpu()
            time.sleep(_IDLE)
            idle = Beside([(ours.cpu() - before[0]) * 1e3], [(floor.cpu() - before[1]) * 1e3])
    yield within_times("exec to running, cold", cold, "ms", 1.25)
    yield within_times("exec to running, warm", warm, "ms", 1.5)
    yield within_times("memory (PSS) beside an idle QEMU", memory, "MB", 2)
    yield within_times("the same, once somebody has asked", asked, "MB", 2.5)
    yield within_times("SIGTERM to everything gone, no grace", stop, "ms", 1.25)
    yield beside(f"idle CPU in {_IDLE} s", idle, "ms")


def _ask(place: Place) -> None:
    """`ctl state`, for which the launcher imports all that serves its control socket."""
    socket = place.directory / "root/sockets/launcher-sock"
    command: list[str | Path] = [BIN / "gpu-launcher", "ctl", "state", "--socket", socket]
    subprocess.run(command, cwd=ROOT, env=_ENVIRON, stdout=subprocess.DEVNULL, check=True)


def _started(place: Place) -> float:
    with place.launched() as launcher:
        return launcher.seconds


def main() -> None:
    print("gpu-launcher run, q35, 1 vCPU, 128 MiB, no disk, emulated CPU; medians, each in turn with the floor")
    print(table(lines()))


if __name__ == "__main__":
    main()
