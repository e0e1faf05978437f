"""The plan, made in a process of its own."""

import subprocess
import sys

from tests.processes import ROOT

# A worker whose planner does `body`.
_PROGRAM = """
import os, signal, sys, time
from dataclasses import fields
from program.errors import ProgramError
from launcher.running.plan import Plan, Planner, plan_in
place = os.memfd_create("plan")
begun, begins = os.pipe()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
worker = os.getpid()
def make():
    {body}
planner = Planner(make, place)
os.close(begins)
{then}
try:
    plan = planner.plan()
    print(f"a plan: {{plan.domain}};" if isinstance(plan, Plan) else plan, plan_in(place) is not None)
except ProgramError as error:
    print(error)
"""
_PLAN = "return Plan(**{field.name: field.name for field in fields(Plan)} | {'grace': 2.5})"


def planned(body: str, then: str = "") -> str:
    program = _PROGRAM.format(body=body, then=then)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.strip()


def test_a_plan_is_left_for_the_worker_and_whoever_comes_after_it() -> None:
    assert planned(_PLAN) == "a plan: domain; True"


def test_its_grace_period_can_be_read_without_the_plan() -> None:
    read = "from launcher.running.grace import grace_in; print(grace_in(place))"
    waits = f"os.kill(os.getpid(), signal.SIGSTOP)\n    {_PLAN}"
    before = f"os.waitid(os.P_PID, planner._pid, os.WSTOPPED); {read}; os.kill(planner._pid, signal.SIGCONT)"
    assert planned(waits, then=before) == "0.0\na plan: domain; True"
    assert planned(_PLAN, then=f"planner.plan(); {read}; sys.exit()") == "2.5"


def test_where_none_is_made_the_exit_code_says_why() -> None:
    assert planned("return 2") == "2 False"
    assert planned("return None") == "0 False"


def test_a_planner_that_is_killed_is_said() -> None:
    assert planned("os.kill(os.getpid(), signal.SIGKILL)").startswith("SIGKILL: has ended the process that reads")


def test_a_planner_can_be_stopped_also_when_it_has_ended() -> None:
    assert planned("time.sleep(60)", then="planner.stop()") == "None False"
    has_ended = "os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)"
    assert planned("return 2", then=f"{has_ended}; planner.stop()") == "None False"


def test_a_planner_that_does_nothing_any_more_is_not_waited_for() -> None:
    """As one that reads what the kernel never gives."""
    stopped = "os.waitid(os.P_PID, planner._pid, os.WSTOPPED); planner.stop()"
    assert planned("os.kill(os.getpid(), signal.SIGSTOP)", then=stopped) == "None False"


def test_nothing_is_raised_in_a_planner_that_a_signal_ends() -> None:
    """Python prints an exception that is raised where it cannot be handled, as in a module's import."""
    begun = "os.read(begun, 1); os.kill(planner._pid, signal.SIGTERM)"
    said = planned("try: os.close(begins); time.sleep(60)\n    finally: print('raised', flush=True)", then=begun)
    assert said == "SIGTERM: has ended the process that reads the manifest; if nobody sent it, memory was short"
