"""The first process of a container, as one: in a process namespace of its own."""

import os
import signal
import subprocess
import sys

import pytest

from tests.processes import ROOT

# Becomes process 1 and has a worker; `body` is what the worker does.
_AS_PROCESS_1 = """
import os, signal, subprocess, sys, time
from launcher.running.supervise import supervise
supervise()
{body}
"""


def run(body: str) -> subprocess.CompletedProcess[str]:
    return as_process_1(_AS_PROCESS_1.format(body=body))


def as_process_1(program: str) -> subprocess.CompletedProcess[str]:
    as_root = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    namespace = ("unshare", *as_root, "--pid", "--fork", "--kill-child", "--mount-proc")
    return subprocess.run(
        [*namespace, sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("code", [0, 1, 2])
def test_it_ends_with_its_workers_code(code: int) -> None:
    done = run(f"print(os.getpid() == 1, flush=True); sys.exit({code})")
    assert (done.stdout, done.returncode) == ("False\n", code)


def test_a_worker_that_a_signal_ends_is_128_and_the_signals_number() -> None:
    assert run("os.kill(os.getpid(), signal.SIGKILL)").returncode == 137


@pytest.mark.parametrize("signum", ["SIGTERM", "SIGINT"])
def test_a_signal_reaches_the_worker_once(signum: str) -> None:
    done = run(f"""
heard = []
signal.signal(signal.{signum}, lambda signum, frame: heard.append(signum))
os.kill(1, signal.{signum})
while not heard: time.sleep(0.01)
time.sleep(0.2)
print(heard == [signal.{signum}])
""")
    assert (done.stdout, done.returncode) == ("True\n", 0)


def test_a_signal_that_comes_before_there_is_a_worker_ends_it() -> None:
    program = "import os, signal\nfrom launcher.running.supervise import hold_signals, supervise\nhold_signals()\n"
    program += "os.kill(os.getpid(), signal.SIGTERM)\nsupervise()\nsignal.pause()"
    assert as_process_1(program).returncode == 128 + signal.SIGTERM


def test_what_becomes_its_child_is_reaped() -> None:
    """As QEMU does: a child of the worker's child, whose own parent has gone."""
    done = run("""
orphan = int(subprocess.check_output(["sh", "-c", "sleep 0.1 > /dev/null & echo $!"]))
deadline = time.monotonic() + 30
while os.path.exists(f"/proc/{orphan}") and time.monotonic() < deadline: time.sleep(0.01)
print(os.path.exists(f"/proc/{orphan}"))
""")
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_any_other_process_is_its_own_worker() -> None:
    program = _AS_PROCESS_1.format(body="print(os.getppid())")
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) == os.getpid()
