"""However a lab ends, nothing of it is left: no process, namespace, mount, cgroup, network device or file."""

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.lab import build
from tests.lab.cache import CACHE
from tests.lab.waiting import NotYet, Patience
from tests.processes import ROOT

# Everything that a lab starts.
_LAB = """
import signal, sys
from pathlib import Path
from tests.lab.lab import running_lab
from tests.lab.machine import MODERN
# As in a terminal; whoever runs the tests in the background may have had it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
with running_lab(MODERN, Path(sys.argv[1])):
    print("up", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [
        pytest.param(None, 0, id="by-itself", marks=pytest.mark.thorough),  # it waits until all of a lab is up
        pytest.param(signal.SIGINT, -signal.SIGINT, id="ctrl-c"),
        pytest.param(signal.SIGKILL, -signal.SIGKILL, id="killed"),
    ],
)
def test_nothing_is_left_of_a_lab_that_ends(
    end: signal.Signals | None, code: int, images: Path, tmp_path: Path
) -> None:
    build.disk()
    before = _traces(tmp_path)
    lab = subprocess.Popen(
        [sys.executable, "-c", _LAB, images],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with lab:
        assert lab.stdout is not None
        assert lab.stdin is not None
        if end is None:
            assert select.select([lab.stdout], [], [], 300)[0], "the lab does not come up"
            assert lab.stdout.readline() == "up\n"
        else:  # its machine is the last that it starts
            Patience().until("its machine runs", lambda: "qemu-system-x86" in _names(_descendants(lab.pid)), 120)
        processes = _descendants(lab.pid)
        namespaces = _namespaces(processes) - _namespaces([os.getpid()])
        assert len(namespaces) == 5
        if end is None:
            lab.stdin.write("\n")
            lab.stdin.flush()
        else:
            os.killpg(lab.pid, end)
        assert lab.wait(60) == code

    def gone() -> bool:
        left = {*_traces(tmp_path)} - before | {f"namespace {link}" for link in _namespaces(_everyone()) & namespaces}
        left |= {f"process {pid}" for pid in processes if Path(f"/proc/{pid}").exists()}
        if left:
            raise NotYet(f"{sorted(left)}")
        return True

    # The kernel takes a moment for a process namespace; what stays longer has been left.
    Patience().until("nothing is left", gone, 30)


def _traces(scratch: Path) -> set[str]:
    """What a program can leave behind on this machine beside processes, a line each. What other tests mount in
    directories of theirs, at the same time, is not its."""
    of_all = scratch.parents[1]
    others = re.compile(rf" {of_all}/(?!{scratch.relative_to(of_all)}/)")
    places = (scratch, CACHE, *map(Path, ("/dev", "/etc", "/opt", "/run", "/var/lib")))
    return {
        *(f"mount {line}" for line in Path("/proc/self/mountinfo").read_text().splitlines() if not others.search(line)),
        *(f"cgroup {directory}" for directory, _, _ in os.walk("/sys/fs/cgroup")),
        *(f"network {device.name}" for device in Path("/sys/class/net").iterdir()),
        *(f"file {path}" for place in places for path in place.iterdir()),
    }


def _everyone() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _descendants(pid: int) -> list[int]:
    """The process, its children, and theirs."""
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            found += map(int, children.read_text().split())
    return found


def _names(processes: Iterable[int]) -> set[str]:
    found = set()
    for pid in processes:
        with suppress(OSError):  # it has gone meanwhile
            found.add(Path(f"/proc/{pid}/comm").read_text().strip())
    return found


def _namespaces(processes: Iterable[int]) -> set[str]:
    found = set()
    for pid in processes:
        for kind in ("mnt", "net", "pid", "uts", "ipc"):
            with suppress(OSError):  # it has gone meanwhile
                found.add(str(Path(f"/proc/{pid}/ns/{kind}").readlink()))
    return found
