"""kubectl's errors, each as one line in its own words with what to do; its deadline, and its absence. The words are
those of kubectl 1.32."""

import sys
import time

import pytest

from gpuvm import process as module
from gpuvm.kubectl import Kubectl
from gpuvm.objects import Pod
from gpuvm.process import run_program
from program.errors import Refusal
from tests.conftest import Command
from tests.gpuvm.cluster import pod
from tests.gpuvm.standin import StandIn
from tests.waiting import allowed

NOISE = 'E1124 08:20:19.492741   24827 memcache.go:265] "Unhandled Error" err="couldn\'t get current server API"\n'
REFUSED = "The connection to the server 127.0.0.1:9 was refused - did you specify the right host or port?"
FORBIDDEN = (
    'Error from server (Forbidden): pods is forbidden: User "jane" cannot list resource "pods" in API group "" in the '
    'namespace "vms"'
)
ERRORS = {
    "no API server": (NOISE * 5 + REFUSED, REFUSED, "see whether this machine reaches the cluster of"),
    "no context": (
        "Error in configuration: context was not found for specified context: nope",
        "Error in configuration: context was not found for specified context: nope",
        "`kubectl config get-contexts` lists the contexts",
    ),
    "forbidden": (FORBIDDEN, FORBIDDEN, "ask for that right: docs/kubectl.md lists what each verb needs"),
    "not logged in": (
        "error: You must be logged in to the server (Unauthorized)",
        "error: You must be logged in to the server (Unauthorized)",
        "log in to the cluster again",
    ),
    "something else": ("error: the moon is full", "error: the moon is full", "try kubectl get pods"),
    "nothing": ("", "has ended with 1", "try kubectl get pods"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_one_line_in_kubectls_words(kubectl_gpuvm: Command, kubectl: StandIn, name: str) -> None:
    words, said, fix = ERRORS[name]
    kubectl.answers("get pods", err=words, code=1)
    result = kubectl_gpuvm("pause", "vm", env=kubectl.env)
    assert (result.stdout, result.stderr.count("\n"), result.returncode) == ("", 1, 1)
    fix = fix.replace("kubectl get pods", f"{kubectl.bin}/kubectl get pods")
    assert result.stderr.startswith(f"kubectl-gpuvm: kubectl: {said}; {fix}")


def test_what_ctl_refuses_is_its_own_line(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    kubectl.answers("get pods", [pod()])
    line = "gpu-launcher: vms/vm: is starting; ask again when it is running\n"
    kubectl.answers("exec", err=f"{line}command terminated with exit code 1\n", code=1)
    result = kubectl_gpuvm("pause", "vm", env=kubectl.env)
    assert (result.stderr, result.returncode) == (line.replace("gpu-launcher", "kubectl-gpuvm"), 1)


def test_without_kubectl_it_says_so(kubectl_gpuvm: Command) -> None:
    result = kubectl_gpuvm("list", env={"PATH": "/nowhere"})
    assert (result.stderr, result.returncode) == (
        "kubectl-gpuvm: kubectl: is not on PATH; install it: kubernetes.io/docs/tasks/tools\n", 1,
    )  # fmt: skip


@pytest.mark.parametrize("text", ["<html>", "[]", '"x"', '{"items": 5}', "[" * 100_000])
def test_an_answer_that_is_no_list_of_objects_is_a_refusal(kubectl_gpuvm: Command, kubectl: StandIn, text: str) -> None:
    kubectl.answers("get", text)
    result = kubectl_gpuvm("pause", "vm", env=kubectl.env)
    assert (result.stderr.count("\n"), result.returncode) == (1, 1)
    assert "kubectl: its answer is no JSON of objects; try " in result.stderr


def test_who_does_not_answer_in_time_is_ended() -> None:
    before = time.monotonic()
    with pytest.raises(Refusal, match=r"sleep 60: has not answered in 0\.2 s; see whether this machine reaches"):
        run_program(["sleep", "60"], within=0.2)
    assert time.monotonic() - before < allowed(10)


def test_what_a_late_launcher_was_asked_may_be_done_all_the_same(kubectl: StandIn) -> None:
    """A pause waits for libvirt, and comes to pass also when nobody waits any more."""
    program = kubectl.bin / "kubectl"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    fix = r"it may be done: `kubectl gpuvm state vm` says what the VM does now"
    with pytest.raises(Refusal, match=rf"ctl pause: has not answered in 0\.2 s; {fix}"):
        Kubectl(str(program)).ctl(Pod.model_validate(pod()), "pause", within=0.2)


def test_who_closes_its_output_and_stays_is_ended_too() -> None:
    program = "import os, time; os.close(1); time.sleep(60)"
    with pytest.raises(Refusal, match=r"has not answered in 1 s"):
        run_program([sys.executable, "-c", program], within=1)


def test_a_program_that_it_started_and_that_keeps_its_output_open_delays_nobody() -> None:
    began = time.monotonic()
    with pytest.raises(Refusal, match=r"has not answered in 0\.5 s"):
        run_program(["sh", "-c", "sleep 30 & wait"], within=0.5)
    assert time.monotonic() - began < allowed(10)


def test_who_says_too_much_is_ended() -> None:
    with pytest.raises(Refusal, match=r"prints more than 256 MiB"):
        run_program(["head", "-c", str(module._MOST + 2), "/dev/zero"], within=60)


def test_a_call_has_its_input() -> None:
    assert run_program(["cat"], stdin=b"\x00abc").out == b"\x00abc"
