"""What comes first in a program: its command, and a stop at any moment of its start, also as process 1 of a pod."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path

import pytest

from program.bootstrap import STOPS, command_named, values_of
from tests.kubelet import Kubelet
from tests.plugin.daemon import BOTH, RTX_3090, serve
from tests.processes import FIXTURES, ROOT, Program, children, hears, running
from tests.waiting import until

MACHINE = FIXTURES / "sysfs" / "two-rtx-3090"
AS_ROOT = () if os.geteuid() == 0 else ("--user", "--map-root-user")
PROCESS_1 = ("unshare", *AS_ROOT, "--pid", "--fork", "--kill-child", "--mount-proc")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(["serve", "--dev", "/dev"], "serve"), (["--", "serve"], "serve"), (["--help"], "--help"), (["--"], ""), ([], "")],
)
def test_a_command_is_the_first_argument_also_behind_two_dashes(arguments: list[str], name: str) -> None:
    assert command_named(arguments) == name


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ("vm.yaml --give=/a --give /b", ["/a", "/b"]),
        ("--give /a=b --give=c=d vm.yaml", ["/a=b", "c=d"]),
        ("--given /a --giv=/b give", []),
        ("--give --give", ["--give"]),
        ("vm.yaml --give", [""]),
        ("--give= vm.yaml", [""]),
        ("--give=/a -- --give=/b", ["/a"]),
    ],
)
def test_what_a_flag_is_given_is_known_before_there_is_a_command_line(arguments: str, values: list[str]) -> None:
    assert values_of("--give", arguments.split()) == values


@pytest.mark.parametrize(
    ("program", "arguments", "held"),
    [
        ("plugin", ("serve",), {signal.SIGHUP, *STOPS}),
        ("plugin", ("--", "serve"), {signal.SIGHUP, *STOPS}),
        ("plugin", ("inventory",), set()),
        ("launcher", ("run",), {*STOPS}),
        ("launcher", ("--", "hook"), {*STOPS}),
        ("launcher", ("hook", "--explain"), set()),  # which waits for its input
        ("launcher", ("render",), set()),
    ],
)
def test_what_stays_holds_signals_before_it_begins(program: str, arguments: tuple[str, ...], held: set[int]) -> None:
    asking = f"import {program}.__main__, signal; print(*signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
    asked = subprocess.run([sys.executable, "-c", asking, *arguments], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    assert set(map(int, asked.stdout.split())) == held


@pytest.fixture(params=[(), PROCESS_1], ids=["any process", "process 1"])
def within(request: pytest.FixtureRequest) -> tuple[str, ...]:
    where: tuple[str, ...] = request.param
    return where


@pytest.fixture
def seeds(pytestconfig: pytest.Config) -> range:
    """With --thorough three hundred, and others each time."""
    thorough = pytestconfig.getoption("--thorough")
    first = random.randrange(1 << 30) if thorough else 0
    return range(first, first + (300 if thorough else 6))


def test_the_plugin_can_be_stopped_at_any_moment_of_its_start(
    within: tuple[str, ...], kubelet: Kubelet, seeds: range
) -> None:
    start = partial(serve, MACHINE, kubelet.directory, within=within)
    stop_often(start, lambda _: kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH), kubelet.directory, seeds)


def test_so_can_the_hook(within: tuple[str, ...], short_dir: Path, seeds: range) -> None:
    start = partial(
        running, "gpu-launcher", "hook", "--socket", short_dir / "a.sock", "--sysfs", MACHINE, within=within
    )
    stop_often(start, lambda program: program.wait_for_line("is there for KubeVirt"), short_dir, seeds)


def stop_often(
    start: Callable[[], AbstractContextManager[Program]],
    has_started: Callable[[Program], object],
    place: Path,
    seeds: range,
) -> None:
    """Stop it once in each of as many equal parts of its start, and of a little time after that: in Python's own,
    before, the kernel does as with any program. Its `place` is in its arguments, and has all that it leaves on disk."""
    with start() as program:
        pid, began = heard(program), time.monotonic()
        has_started(program)
        most = 1.2 * (time.monotonic() - began)
        os.kill(pid, signal.SIGTERM)
        assert program.end() == 0
    left, slowest = set(place.rglob("*")), 0.0
    for number, seed in enumerate(seeds):
        dice = random.Random(seed)
        signum, at = dice.choice(STOPS), most * (number + dice.random()) / len(seeds)
        with start() as program:
            pid = heard(program)
            time.sleep(at)
            told = time.monotonic()
            os.kill(pid, signum)
            case = str((seed, signum.name, round(at, 3), program.end(), program.log))
            slowest = max(slowest, time.monotonic() - told)
            assert program.process.wait() == 0, case
            assert not [line for line in program.log if "Traceback" in line or "error" in line], case
            until(lambda: processes_of(place) == [])
            assert set(place.rglob("*")) == left, case
    print(f"{len(seeds)} stops within {most:.2f} s, each of them obeyed in {slowest:.2f} s")


def heard(program: Program) -> int:
    """The process to tell, from when it can be told: where `unshare` calls it, its child."""
    found: list[int] = []

    def is_ready() -> bool:
        found[:] = [pid for pid in (program.process.pid, *children(program.process.pid)) if is_python(pid)]
        return found != [] and hears(found[0], signal.SIGTERM)

    until(is_ready)
    return found[0]


def is_python(pid: int) -> bool:
    return Path(f"/proc/{pid}/exe").readlink() == Path(sys.executable).resolve()


def processes_of(place: Path) -> list[str]:
    """Those that have it in their arguments, as what they fork has."""
    found = []
    for arguments in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            if os.fsencode(place) in arguments.read_bytes():
                found.append(arguments.parent.name)
    return found
