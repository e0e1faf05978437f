"""suspend and resume: the guest's memory is on a claim before its pod goes, and the record says so until it goes on."""

from typing import Any

import pytest

from tests.conftest import Command
from tests.gpuvm.cluster import Object, controller, ended, pod, terminated
from tests.gpuvm.standin import StandIn
from tests.gpuvm.test_changes import changes
from tests.gpuvm.test_records import having, made, record

ALWAYS = {"restartPolicy": "Always"}
RESUME = "`kubectl gpuvm resume` has it go on\n"


def suspendable(name: str = "no-devices", **more: Any) -> Object:
    """A pod with a claim for its guest's memory."""
    found = pod(name, spec=ALWAYS, **more)
    found["spec"]["volumes"].append(
        {"name": "gpu-launcher-suspended", "persistentVolumeClaim": {"claimName": "memory"}}
    )
    return found


def suspended(**more: Any) -> Object:
    """The record of a suspended VM."""
    found = record(stopped=False, **more)
    found["metadata"]["annotations"] = {"gpu-launcher.dev/suspended": "memory"}
    return found


def test_a_pod_goes_once_its_guests_memory_is_saved(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    having(kubectl, suspendable(), record())
    kubectl.answers("exec")
    result = kubectl_gpuvm("suspend", "no-devices", env=kubectl.env)
    assert (result.stdout, result.returncode) == (f"no-devices: is suspended to the claim memory; {RESUME}", 0)
    saved, marked, deleted = changes(kubectl)
    assert saved == ["exec", "pod/no-devices", "-c", "compute", "--", "gpu-launcher", "ctl", "suspend"]
    words = ["gpu-launcher.dev/suspended=memory", "gpu-launcher.dev/stopped-", "--overwrite"]
    assert marked == ["annotate", "configmap/gpu-launcher-no-devices-1", *words]
    assert deleted == ["delete", "pod/no-devices", "--wait=false"]


def test_a_guest_that_cannot_be_saved_keeps_its_pod(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    having(kubectl, suspendable(), record())
    kubectl.answers("exec", err="gpu-launcher: gpu1: 0000:41:00.0 is bound to vfio-pci; a vGPU\n", code=1)
    result = kubectl_gpuvm("suspend", "no-devices", env=kubectl.env)
    assert (result.returncode, "0000:41:00.0 is bound to vfio-pci" in result.stderr) == (1, True)
    assert [call[0] for call in changes(kubectl)] == ["exec"]


@pytest.mark.parametrize(
    ("objects", "says"),
    [
        ([pod("no-devices"), record()], "has no claim for its memory; name one in its annotation"),
        ([suspended()], f"is suspended already, to the claim memory; {RESUME}"),
        ([controller("StatefulSet", "no-devices", replicas=2),
          suspendable("no-devices-0", vm="no-devices", owner="StatefulSet/no-devices")], "is one of several replicas"),
    ],
    ids=["no claim", "suspended", "several"],
)  # fmt: skip
def test_what_is_not_suspended_is_not_touched(
    kubectl_gpuvm: Command, kubectl: StandIn, objects: list[Object], says: str
) -> None:
    having(kubectl, *objects)
    result = kubectl_gpuvm("suspend", "no-devices", env=kubectl.env)
    assert (says in result.stderr, result.returncode, changes(kubectl)) == (True, 1, []), result.stderr


def test_a_controller_is_to_have_no_pod_once_its_guests_memory_is_saved(
    kubectl_gpuvm: Command, kubectl: StandIn
) -> None:
    its = suspendable("no-devices-0", vm="no-devices", owner="StatefulSet/no-devices")
    having(kubectl, controller("StatefulSet", "no-devices"), its, record())
    kubectl.answers("exec|patch")
    assert kubectl_gpuvm("suspend", "no-devices", env=kubectl.env).returncode == 0
    assert [call[0] for call in changes(kubectl)] == ["exec", "annotate", "patch"]


def drained(name: str = "no-devices", **more: Any) -> Object:
    """A pod whose launcher suspends its guest when the pod is deleted."""
    found = suspendable(name, **more)
    found["metadata"]["annotations"]["gpu-launcher.dev/on-drain"] = "suspend"
    return found


@pytest.mark.parametrize(
    ("words", "by"),
    [(["stop"], "shutdown"), (["stop", "--force"], "kill"), (["delete"], "shutdown")],
    ids=["stop", "stop --force", "delete"],
)
def test_a_guest_that_its_pods_end_would_suspend_ends_before(
    kubectl_gpuvm: Command, kubectl: StandIn, words: list[str], by: str
) -> None:
    kubectl.answers("get (persistentvolumeclaims|resourceclaimtemplates|datavolumes)", [])
    having(kubectl, drained(), record())
    kubectl.answers("exec")
    assert kubectl_gpuvm(*words, "no-devices", env=kubectl.env).returncode == 0
    first, second, *_ = changes(kubectl)
    assert (first[-2:], second[:2]) == (["ctl", by], ["delete", "pod/no-devices"])


def test_a_guest_that_cannot_be_told_to_end_keeps_its_pod(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    having(kubectl, drained(), record())
    kubectl.answers("exec", err="Error from server (Forbidden): pods/exec\n", code=1)
    assert kubectl_gpuvm("stop", "no-devices", env=kubectl.env).returncode == 1
    assert [call[0] for call in changes(kubectl)] == ["exec"]


def test_a_controllers_guest_ends_before_its_pod(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    its = drained("no-devices-0", vm="no-devices", owner="StatefulSet/no-devices")
    having(kubectl, controller("StatefulSet", "no-devices"), its, record())
    kubectl.answers("exec|patch")
    assert kubectl_gpuvm("stop", "no-devices", env=kubectl.env).returncode == 0
    assert [call[0] for call in changes(kubectl)] == ["exec", "patch"]


@pytest.mark.parametrize("verb", ["resume", "start"])
def test_a_suspended_vm_goes_on_in_a_pod_of_its_record(kubectl_gpuvm: Command, kubectl: StandIn, verb: str) -> None:
    having(kubectl, suspended())
    result = kubectl_gpuvm(verb, "no-devices", env=kubectl.env)
    assert made(kubectl)["metadata"]["name"] == "no-devices"
    assert result.stdout.endswith("no-devices: goes on with its memory, which is on the claim memory\n")
    forgotten = ["annotate", "configmap/gpu-launcher-no-devices-1", "gpu-launcher.dev/suspended-", "--overwrite"]
    assert changes(kubectl)[-1] == forgotten


@pytest.mark.parametrize("of", [[record()], [pod("no-devices"), record()]], ids=["stopped", "running"])
def test_only_a_suspended_vm_is_resumed(kubectl_gpuvm: Command, kubectl: StandIn, of: list[Object]) -> None:
    having(kubectl, *of)
    result = kubectl_gpuvm("resume", "no-devices", env=kubectl.env)
    assert (result.returncode, changes(kubectl)) == (1, [])
    assert result.stderr.startswith("kubectl-gpuvm: no-devices: is not suspended; `kubectl gpuvm start` starts one")


def waiting() -> Object:
    """A pod that somebody has suspended by ctl alone, and whose container the kubelet starts again and again."""
    state = {"waiting": {"reason": "CrashLoopBackOff"}}
    return pod("no-devices", ready=False, state=state, last_state=terminated(17), spec=ALWAYS)


@pytest.mark.parametrize("of", [suspended(), waiting(), ended(17, name="no-devices")], ids=["record", "pod", "ended"])
def test_a_suspended_vm_is_listed_so(kubectl_gpuvm: Command, kubectl: StandIn, of: Object) -> None:
    having(kubectl, of)
    assert kubectl_gpuvm("list", env=kubectl.env).stdout.splitlines()[1].split()[:2] == ["no-devices", "Suspended"]


def test_a_pod_that_ctl_has_suspended_is_made_anew(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    kubectl.answers("get pod/", [waiting()])
    having(kubectl, waiting())
    kubectl.answers("create", "pod/no-devices created\n")
    kubectl.answers("get configmap/", "")
    result = kubectl_gpuvm("resume", "no-devices", env=kubectl.env)
    assert result.returncode == 0, result.stderr
    assert [call[0] for call in changes(kubectl)] == ["delete", "create"]


def test_why_a_suspended_vm_does_not_run(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    having(kubectl, suspended())
    said = f"vms/no-devices: is Suspended: its memory is on the claim memory; {RESUME}"
    assert kubectl_gpuvm("why", "no-devices", env=kubectl.env).stdout == said


def test_the_end_of_a_suspended_vm_names_the_file_that_stays(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    kubectl.answers("get (persistentvolumeclaims|resourceclaimtemplates|datavolumes)", [])
    having(kubectl, suspended())
    said = kubectl_gpuvm("delete", "no-devices", env=kubectl.env).stdout
    kept = "suspended/no-devices.memory on the claim memory, whoever may read that"
    assert said.endswith(f"no-devices: kept is its memory, {kept}\n")
