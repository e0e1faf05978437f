"""A driver that is killed before and after it writes to the card that makes a vGPU for a claim or takes it away: the
next one finishes that, and nothing is left. With --thorough: each kill takes the container's restart.
"""

import json
from dataclasses import replace

import pytest

from tests.lab.lab import Lab
from tests.lab.machine import MODERN
from tests.lab.test_dra import HAS_COUNTERS, NUMBERS, WHEN_CLAIMED, made, prepared, wish_for

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not HAS_COUNTERS, reason="Kubernetes has counters of devices from 1.36 on"),
]

MACHINE = replace(MODERN, vgpus=True)

_STATE = "/var/lib/gpu-plugin"
#: Has the process in which the driver writes to sysfs, a Python of its own that loads this file, stop at a moment:
#: there is one before and one after each write. The file `stop-at` has the moment's number; without it, none stops.
_SITECUSTOMIZE = f"""
import sys

if "program.child" in str(sys.orig_argv):
    import time
    from pathlib import Path

    from plugin.changes import engine

    number, stopped = Path("{_STATE}/stop-at"), Path("{_STATE}/stopped")

    def moment():
        left = int(number.read_text()) - 1 if number.exists() else -1
        if left > 0:
            number.write_text(str(left))
        elif left == 0:
            number.unlink()
            stopped.touch()
            time.sleep(3600)

    def stopping_writer(sysfs, writer=engine.sysfs_writer):
        def write(step):
            moment()
            writer(sysfs)(step)
            moment()
        return write

    engine.sysfs_writer = stopping_writer
"""
_HALF = "L40S-24Q"


@pytest.fixture(scope="module")
def driver(lab: Lab) -> None:
    lab.start_plugin(WHEN_CLAIMED, base="dra")
    loaded = f"{_STATE}/loaded"
    lab.node.sh(f"mkdir {loaded}; cat > {loaded}/sitecustomize.py <<'END'\n{_SITECUSTOMIZE}\nEND")
    container = {"name": "gpu-plugin", "env": [{"name": "PYTHONPATH", "value": loaded}]}
    patch = {"spec": {"template": {"spec": {"containers": [container]}}}}
    lab.cluster.kubectl("patch", "daemonset", "gpu-plugin", "-p", json.dumps(patch))
    lab.cluster.kubectl("rollout", "status", "daemonset/gpu-plugin", "--timeout=0", seconds=220)


def _stop_at(lab: Lab, moment: int) -> None:
    lab.node.sh(f"rm -f {_STATE}/stopped; echo {moment} > {_STATE}/stop-at")


def _killed(lab: Lab) -> list[str]:
    """Kill the driver once it has stopped, and see another one ready; what the functions were in between."""
    lab.until("the driver is at that moment", lambda: "stopped" in lab.node.sh(f"ls {_STATE}").split(), 150)
    before, pod = sorted(made(lab).values()), lab.plugin()
    restarts = lab.restarts(pod)
    lab.node.sh("kill -9 $(grep -lz '/bin/gpu-plugi[n]$' /proc/[0-9]*/cmdline | cut -d / -f 3)")
    lab.until("its container is another one", lambda: lab.restarts(pod) > restarts, 150)
    assert lab.plugin() == pod
    return before


@pytest.mark.parametrize("moment", [1, 2], ids=["before the write", "after the write"])
def test_the_next_driver_makes_the_vgpu_that_a_killed_one_was_at_and_takes_it_away(
    lab: Lab, driver: None, moment: int
) -> None:
    nothing, one = ["0", "0"], ["0", NUMBERS[_HALF]]
    _stop_at(lab, moment)
    with lab.pod("half", 0, dra=True, sleeps=True, grace=1, more=wish_for(_HALF)):
        assert _killed(lab) == (nothing if moment == 1 else one)
        lab.until("its pod runs", lambda: lab.phase("half") == "Running", 150)
        assert sorted(made(lab).values()) == one
        _stop_at(lab, moment)
        lab.cluster.kubectl("delete", "pod", "half", "--wait=false")
        assert _killed(lab) == (one if moment == 1 else nothing)
        lab.until("the pod has gone", lambda: "half" not in lab.cluster.kubectl("get", "pods"), 150)
    lab.until("nothing is prepared", lambda: not prepared(lab), 60)
    assert sorted(made(lab).values()) == nothing
