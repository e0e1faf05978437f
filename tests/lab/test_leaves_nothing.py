"""However a lab ends, nothing of it is left: no process, namespace, mount, cgroup, network device or file."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import build
from tests.lab.cache import CACHE
from tests.lab.control_plane import until
from tests.processes import ROOT

# A control plane and a machine: every kind of thing that a lab starts.
_LAB = """
import sys, time
from pathlib import Path
from tests.lab import build
from tests.lab.box import opened_box
from tests.lab.control_plane import running_control_plane
from tests.lab.machine import MODERN, qemu
with opened_box() as box, running_control_plane(box):
    disk, console = build.disk() / "disk.img", box.path("/run/lab/log/console.log")
    console.touch()
    box.spawn("machine", *qemu(MODERN, disk, disk, "/run/lab/log/console.log"))
    while "NODE" not in console.read_text():
        assert box.runs("machine")
        time.sleep(0.1)
    print("up", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("end", [None, signal.SIGINT, signal.SIGKILL], ids=["by-itself", "ctrl-c", "killed"])
def test_nothing_is_left_of_a_lab_that_ends(end: signal.Signals | None, tmp_path: Path) -> None:
    build.disk()
    before = _traces(tmp_path)
    lab = subprocess.Popen(
        [sys.executable, "-c", _LAB],
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
        assert lab.stdout.readline() == "up\n"
        during = _traces(tmp_path) - before
        assert {"process", "namespace"} <= {trace.split()[0] for trace in during}
        if end is None:
            lab.stdin.write("\n")
            lab.stdin.flush()
        else:
            os.killpg(lab.pid, end)
        lab.wait(60)
    # Others come and go on this machine, and the kernel takes a moment; what a lab leaves stays.
    until("nothing is left", lambda: not (_traces(tmp_path) & during), 30)


_EVERYBODYS = ("/dev", "/etc", "/run", "/tmp", "/var/lib", "/var/tmp")


def _traces(scratch: Path) -> set[str]:
    """Whatever a program can leave behind on this machine, a line each."""
    return {
        *(f"process {pid} {name}" for pid, name in _processes()),
        *(f"namespace {link}" for link in _namespaces()),
        *(f"mount {line}" for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        *(f"cgroup {directory}" for directory, _, _ in os.walk("/sys/fs/cgroup")),
        *(f"network {device.name}" for device in Path("/sys/class/net").iterdir()),
        *(
            f"file {path}"
            for directory in (
                scratch,
                CACHE,
                ROOT,
                *map(Path, ("/tmp", "/run", "/var/tmp", "/var/lib", "/etc", "/dev")),
            )
            for path in directory.iterdir()
        ),
    }


def _processes() -> list[tuple[str, str]]:
    found = []
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            found.append((comm.parent.name, comm.read_text().strip()))
        except OSError:  # it has gone meanwhile
            continue
    return found


def _namespaces() -> set[str]:
    found = set()
    for kind in ("mnt", "net", "pid", "uts", "ipc", "cgroup"):
        for link in Path("/proc").glob(f"[0-9]*/ns/{kind}"):
            try:
                found.add(str(link.readlink()))
            except OSError:
                continue
    return found
