"""The plan, made in a process of its own, as the worker and the processes beside it have it."""

import subprocess
import sys

import pytest

from tests.processes import ROOT

# A worker that cannot reach the libvirt of its plan.
_PROGRAM = """
import os, signal
from contextlib import nullcontext
from dataclasses import fields
from launcher.runtime.supervise import grace_in
from launcher.runtime.plan import RunPlan, plan_in
from launcher.runtime.worker import work
from program.errors import ProgramError
from program.bootstrap import hold
hold()
place = os.memfd_create("plan")
def make():
    print(grace_in(place), plan_in(place), flush=True)
    {body}
try:
    served = lambda plan, vm: nullcontext()
    print(work(make, place, "none:///", served, None, supervisor=os.getppid(), to_its_end=False))
except ProgramError as error:
    print(error)
plan = plan_in(place)
print(grace_in(place), plan and plan.domain)
"""
_PLAN = """return RunPlan(**{field.name: () for field in fields(RunPlan)}
        | {"domain": "vm", "uri": "none:///", "locked": 0, "control": None, "grace": 2.5})"""


def worked(body: str) -> list[str]:
    program = _PROGRAM.format(body=body)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    first, *lines = done.stdout.splitlines()
    assert first == "0.0 None"
    return lines


def test_a_plan_and_its_grace_period_are_left_for_whoever_comes_after_the_worker() -> None:
    refused, left = worked(_PLAN)
    assert refused.startswith("libvirt: cannot be reached at none:///")
    assert left == "2.5 vm"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("return 2", "2"),
        ("raise ProgramError('vm.yaml', 'is away', 'name another')", "vm.yaml: is away; name another"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "the process that reads the manifest: signal 9 has ended it; "),
    ],
)
def test_where_none_is_made_it_is_said_why(body: str, code: str) -> None:
    said, left = worked(body)
    assert said.startswith(code)
    assert left == "0.0 None"
