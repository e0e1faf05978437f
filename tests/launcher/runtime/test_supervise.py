"""The supervisor as a process: process 1 of a process namespace of its own, and any other."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.processes import ROOT
from tests.waiting import allowed

# `body` is what the worker does.
_PROGRAM = """
import os, signal, subprocess, sys, time
from launcher.runtime.supervise import supervise
from program.bootstrap import hold
hold()
{before}
def say(line):
    print("gpu-launcher:", line, file=sys.stderr, flush=True)
def work():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM, signal.SIGINT])
    {body}
sys.exit(supervise(work, lambda: print("tidied", flush=True), lambda: {grace}, say))
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


def program(body: str, before: str = "", grace: float = 0) -> str:
    return _PROGRAM.format(body="\n    ".join(body.strip().split("\n")), before=before, grace=grace)


def as_process_1(body: str, before: str = "") -> subprocess.CompletedProcess[str]:
    as_root = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    return called("unshare", *as_root, "--pid", "--fork", "--kill-child", "--mount-proc", body=body, before=before)


def as_any_process(body: str, before: str = "", grace: float = 0) -> subprocess.CompletedProcess[str]:
    return called(body=body, before=before, grace=grace)


def called(*within: str, body: str, before: str, grace: float = 0) -> subprocess.CompletedProcess[str]:
    command = [*within, sys.executable, "-c", program(body, before, grace)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=allowed(60), check=False)


@pytest.fixture(params=[as_process_1, as_any_process], ids=["process 1", "any process"])
def run(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("code", [0, 1, 2])
def test_it_ends_with_its_workers_code(run: Run, code: int) -> None:
    done = run(f"print(os.getpid() == 1, flush=True); return {code}")
    assert (done.stdout, done.stderr, done.returncode) == ("False\n", "", code)


def test_a_worker_that_a_signal_ends_is_128_and_the_signals_number_and_tidied_after(run: Run) -> None:
    done = run("os.kill(os.getpid(), signal.SIGKILL)")
    assert (done.stdout, done.returncode) == ("tidied\n", 137)
    assert done.stderr == "gpu-launcher: SIGKILL has ended the worker, and so the guest\n"


@pytest.mark.parametrize("signum", ["SIGTERM", "SIGINT"])
def test_a_signal_reaches_the_worker_once(run: Run, signum: str) -> None:
    done = run(f"""
heard = []
signal.signal(signal.{signum}, lambda signum, frame: heard.append(signum))
os.kill(os.getppid(), signal.{signum})
while not heard: time.sleep(0.01)
time.sleep(0.2)
print(heard == [signal.{signum}])
""")
    assert (done.stdout, done.returncode) == ("True\n", 0)


def test_what_a_terminal_sends_to_all_its_processes_reaches_the_worker_once() -> None:
    """^C is SIGINT to the terminal's foreground process group."""
    done = as_any_process(
        """
heard = []
signal.signal(signal.SIGINT, lambda signum, frame: heard.append(signum))
os.killpg(os.getpgid(os.getppid()), signal.SIGINT)
while not heard: time.sleep(0.01)
time.sleep(0.2)
print(heard == [signal.SIGINT])
""",
        before="os.setpgid(0, 0)",
    )
    assert (done.stdout, done.returncode) == ("True\n", 0)


def test_a_signal_that_comes_before_there_is_a_worker_reaches_it(run: Run) -> None:
    done = run("signal.pause()", before="os.kill(os.getpid(), signal.SIGTERM)")
    assert done.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("state", ["SIGSTOP", "SIG_IGN"])
def test_a_worker_that_does_not_end_is_killed_after_the_grace_period_and_what_is_the_launchers(state: str) -> None:
    """With a grace period that leaves one second of the launcher's forty."""
    hangs = {"SIGSTOP": "os.kill(os.getpid(), signal.SIGSTOP)", "SIG_IGN": "time.sleep(600)"}
    ignores = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    begun = time.monotonic()
    done = as_any_process(f"{ignores}; os.kill(os.getppid(), signal.SIGTERM); {hangs[state]}", grace=-39)
    assert time.monotonic() - begun < allowed(20)
    assert (done.stdout, done.returncode) == ("tidied\n", 137)
    assert done.stderr == "gpu-launcher: the worker has not ended in time and is killed, and so the guest\n"


def test_what_becomes_its_child_is_reaped(run: Run) -> None:
    """As QEMU does: a child of the worker's child, whose own parent has gone."""
    done = run("""
orphan = int(subprocess.check_output(["sh", "-c", "sleep 0.1 > /dev/null & echo $!"]))
deadline = time.monotonic() + 30
while os.path.exists(f"/proc/{orphan}") and time.monotonic() < deadline: time.sleep(0.01)
print(os.path.exists(f"/proc/{orphan}"))
""")
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.parametrize("end", ["return 7", "os.kill(os.getpid(), signal.SIGKILL)"], ids=["ends", "is killed"])
@pytest.mark.parametrize("trap", ["", "trap '' TERM;"], ids=["obeys", "ignores SIGTERM"])
def test_what_the_worker_leaves_ends_with_it(end: str, trap: str) -> None:
    """A daemon, and its child, which holds our standard output open as long as it lives."""
    daemon = f"{trap} (sleep 1000; :) & sleep 1000"
    done = as_any_process(f"""
subprocess.run(["setsid", "--fork", "sh", "-c", {daemon!r}])
time.sleep(0.3)
{end}
""")
    assert done.returncode == (7 if end == "return 7" else 137)


def test_the_worker_of_a_supervisor_that_is_killed_is_told_to_end() -> None:
    done = as_any_process("""
signal.signal(signal.SIGTERM, lambda signum, frame: (print("told", flush=True), sys.exit(0)))
os.kill(os.getppid(), signal.SIGKILL)
for _ in range(3000): time.sleep(0.01)  # short ones: a signal that comes just before a sleep does not interrupt it
""")
    assert (done.stdout, done.returncode) == ("told\n", -signal.SIGKILL)
