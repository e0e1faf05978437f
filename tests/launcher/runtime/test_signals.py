"""Signals at any moment of a VM's life, with a real QEMU: the right exit code and last line, nothing left, in time."""

import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from program.ending import Ending
from tests.launcher import kernels
from tests.launcher.runtime.test_faults import Launched, Pod, arguments_of, last_line
from tests.temporary import SHORT
from tests.waiting import allowed, until

_GRACE = 1  # seconds, of each VM
_DEADLINE = _GRACE + 45  # seconds, as in a pod
_AT_ONCE = 4
_LIFE = 2.5  # of the time that a start takes, in which a signal comes

_STOPPED = {
    last_line(Ending.ON_REQUEST),
    last_line(Ending.NOT_STARTED),
    f"INFO the VM has ended: {Ending.NOT_STARTED.words}",  # it had no name yet
}
_WORKER_KILLED = "ERROR SIGKILL has ended the worker, and so the guest"


class Round(NamedTuple):
    """What was sent to whom, when (a part of a start), and after how many seconds all had ended."""

    signum: signal.Signals
    whom: str
    at: float
    seconds: float


def roles(launched: Launched) -> dict[str, int]:
    """The launcher's processes, by what they are, as far as they are there; `planner`: any child of the worker."""
    supervisor = launched.program.process.pid
    found = {"supervisor": supervisor}
    for pid in sorted(launched.processes()):
        if b"guest=" in (arguments := arguments_of(pid)):
            found["QEMU"] = pid
        elif b"gpu-launcher" in arguments:
            parent = parent_of(pid)
            if parent == supervisor:
                found.setdefault("worker", pid)
            elif parent == found.get("worker"):
                found.setdefault("planner", pid)
    return found


def is_python(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/exe").readlink() == Path(sys.executable).resolve()
    except OSError:
        return False


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def is_right(whom: str, code: int, line: str) -> bool:
    """Of a VM whose process was killed, or which was stopped."""
    match whom:
        case "stop":
            return (code == 0 and line in _STOPPED) or (code, line) == (-signal.SIGTERM, "")
        case "supervisor":  # its worker is told so, and stops; before it had one, nobody says anything
            return code == -signal.SIGKILL and (line in _STOPPED or line == "" or "has ended" not in line)
        case "worker":
            return (code, line) == (137, _WORKER_KILLED)
        case "planner":
            return code == 1 and line.startswith("ERROR ")
        case _:
            return (code, line) == (12, last_line(Ending.QEMU_DIED)) or (
                code == 1 and line.startswith("ERROR libvirt: cannot start the domain: ")
            )


def lived(seed: int, known_qemu: Path, start: float) -> Round | Exception:
    """One VM, to which a signal comes; what was wrong of it, where something was."""
    try:
        return _lived(seed, known_qemu, start)
    except Exception as error:
        print(error, flush=True)
        return error


def _lived(seed: int, known_qemu: Path, start: float) -> Round:
    dice = random.Random(seed)
    with TemporaryDirectory(prefix="gl-", dir=SHORT) as directory:
        here = Path(directory)
        pod = Pod(run=here / "run", vm=here / "vm.yaml", path=here / "bin")
        pod.path.mkdir()
        shutil.copytree(known_qemu, pod.root / "cache")
        pod.write(kernel=dice.choice((kernels.IGNORES, kernels.OBEYS)), grace=_GRACE)
        with pod.launched(by="env") as launched:  # a program of its own: its start has moments that a fork has not
            until(lambda: is_python(launched.program.process.pid))  # and no shell any more
            at = dice.uniform(0, _LIFE)
            time.sleep(at * start)
            signum, whom = signal.SIGTERM, "stop"
            there = roles(launched)
            if dice.random() < 0.5:
                signum, whom = signal.SIGKILL, dice.choice(sorted(there))
            sent = time.monotonic()
            os.kill(there.get(whom, launched.program.process.pid), signum)
            try:
                code = launched.program.end(_DEADLINE)
                until(lambda: launched.processes() == {}, _DEADLINE, launched.processes)
            except AssertionError as error:
                raise AssertionError(f"{(seed, signum.name, whom, round(at, 2), there)}: {error}") from error
            seconds = time.monotonic() - sent
            log = launched.program.log
            case = str((seed, signum.name, whom, round(at, 2), round(seconds, 1), code, log))
            assert not any("Traceback" in line for line in log), case
            assert is_right(whom, code, log[-1] if log else ""), case
            assert pod.left() == set(), case
            assert seconds < allowed(_DEADLINE), case
    return Round(signum, whom, at, seconds)


def test_whatever_is_killed_or_stopped_at_whatever_moment(request: pytest.FixtureRequest, known_qemu: Path) -> None:
    """With --thorough five hundred VMs, from other seeds each time."""
    thorough = request.config.getoption("--thorough")
    first = random.randrange(1 << 30) if thorough else 0
    with TemporaryDirectory(prefix="gl-", dir=SHORT) as directory:
        here = Path(directory)
        pod = Pod(run=here / "run", vm=here / "vm.yaml", path=here / "bin")
        pod.path.mkdir()
        shutil.copytree(known_qemu, pod.root / "cache")
        pod.write(grace=0)
        begun = time.monotonic()
        with pod.launched(by="env") as launched:
            launched.is_running()
            start = time.monotonic() - begun
            launched.program.send(signal.SIGTERM)
            launched.ended(_DEADLINE)
    seeds = range(first, first + (500 if thorough else 8))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        ended = list(pool.map(lambda seed: lived(seed, known_qemu, start), seeds))
    rounds = [found for found in ended if isinstance(found, Round)]
    print(f"a start: {start:.1f} s; {Counter((found.signum.name, found.whom) for found in rounds)}")
    middle = sorted(found.seconds for found in rounds)[len(rounds) // 2]
    slowest = max(rounds, key=lambda found: found.seconds)
    print(f"all had ended after {middle:.1f} s (median) and at most {slowest.seconds:.1f} s: {slowest}")
    wrong = [found for found in ended if isinstance(found, Exception)]
    assert not wrong, "\n".join(map(str, wrong))
