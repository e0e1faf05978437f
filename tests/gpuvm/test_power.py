"""start, stop and restart: what becomes of a pod by itself, and of one that a controller makes."""

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from gpuvm.objects import MARK
from tests.conftest import Command
from tests.gpuvm.cluster import controller, ended, golden, pending, pod
from tests.gpuvm.standin import StandIn
from tests.gpuvm.test_verbs import GET_ALL, GET_PODS, in_pod

ALWAYS, NEVER = {"restartPolicy": "Always"}, {"restartPolicy": "Never"}


def changes(kubectl: StandIn) -> list[list[str]]:
    """The calls that change something."""
    return [call for call in kubectl.calls if "get" not in call]


def having(kubectl: StandIn, *objects: dict[str, Any]) -> None:
    kubectl.answers("^(--namespace=vms )?get pods", list(objects))
    kubectl.answers("get pod/", [each for each in objects if each["kind"] == "Pod"][:1])
    kubectl.answers("get configmap/", golden(kind="ConfigMap"))
    kubectl.answers("create --dry-run", "pod/vm-x7 created (server dry run)\n")
    kubectl.answers("create", "pod/vm created\n")
    kubectl.answers("exec|patch|delete|wait")


def test_a_pod_that_would_start_its_guest_again_is_deleted(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    having(kubectl, pod(spec=ALWAYS))
    result = kubectl_gpuvm("stop", "vm", env=kubectl.env)
    assert (result.stdout, result.returncode) == (
        "vm: is asked to shut down; `kubectl gpuvm apply -f vm.yaml` makes its Pod anew\n", 0,
    )  # fmt: skip
    assert kubectl.calls == [GET_ALL, ["kubectl", "delete", "pod/vm", "--wait=false"]]


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_any_other_pod_stays_and_can_be_started_again(kubectl_gpuvm: Command, kubectl: StandIn, policy: str) -> None:
    having(kubectl, pod(spec={"restartPolicy": policy}))
    assert kubectl_gpuvm("stop", "vm", env=kubectl.env).stdout == "vm: is asked to shut down\n"
    assert changes(kubectl) == [["kubectl", *in_pod("shutdown")[2:]]]


TOKEN = {"name": "kube-api-access-x7", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
TRIAL = ["create", "--dry-run=server", "-f", "-"]
CREATE = ["create", "--save-config", "-f", "-"]


def test_a_pod_that_has_ended_is_made_anew_once_the_api_server_would_take_it(
    kubectl_gpuvm: Command, kubectl: StandIn
) -> None:
    one = ended(0, phase="Succeeded", spec=NEVER)
    made = deepcopy(one)
    one["spec"].update(serviceAccount="default", priority=0, preemptionPolicy="PreemptLowerPriority")
    one["spec"]["volumes"].append({"name": TOKEN["name"], "projected": {"sources": []}})
    one["spec"]["containers"][0]["volumeMounts"].append(TOKEN)
    one["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"] = "[]"
    having(kubectl, one)
    assert kubectl_gpuvm("start", "vm", env=kubectl.env).stdout == "pod/vm created\n"
    assert [call[1:] for call in changes(kubectl)] == [TRIAL, ["delete", "pod/vm"], CREATE]
    trial, new = (json.loads(text) for text in (kubectl.given[-3], kubectl.given[-1]))
    assert new == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "vm", "namespace": "vms", "labels": made["metadata"]["labels"],
            "annotations": {MARK: made["metadata"]["annotations"][MARK]},
        },
        "spec": {name: value for name, value in made["spec"].items() if name != "nodeName"},
    }  # fmt: skip
    assert (trial["metadata"].pop("generateName"), new["metadata"].pop("name")) == ("vm-", "vm")
    assert trial == new


def test_what_an_annotation_says_was_applied_is_made_by_nobody(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    """Whoever may patch the pod writes it; its starter may be the cluster's admin."""
    binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "me"}}
    one = ended(0, phase="Succeeded", spec=NEVER)
    one["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = json.dumps(binding)
    having(kubectl, one)
    assert kubectl_gpuvm("start", "vm", env=kubectl.env).returncode == 0
    assert not any("ClusterRoleBinding" in text for text in kubectl.given)


def test_a_pod_that_would_not_be_taken_is_not_deleted(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    kubectl.answers(
        "create", err='Error from server (Forbidden): pods "vm-" is forbidden: violates PodSecurity', code=1
    )
    having(kubectl, ended(0, phase="Succeeded", spec=NEVER))
    result = kubectl_gpuvm("start", "vm", env=kubectl.env)
    assert "violates PodSecurity" in result.stderr
    assert (result.returncode, [call[1:] for call in changes(kubectl)]) == (1, [TRIAL])


def test_a_pod_that_is_not_made_anew_is_kept_in_a_file(
    kubectl_gpuvm: Command, kubectl: StandIn, tmp_path: Path
) -> None:
    kubectl.answers("create --save-config", err="Error from server: etcdserver: request timed out", code=1)
    having(kubectl, ended(0, phase="Succeeded", spec=NEVER))
    result = kubectl_gpuvm("start", "vm", env={**kubectl.env, "TMPDIR": str(tmp_path)})
    (file,) = tmp_path.glob("kubectl-gpuvm-*.json")
    kept = f"kubectl-gpuvm: {file}: has the pod, which is deleted; `kubectl create -f {file}` makes it anew\n"
    assert result.stderr.endswith(kept)
    assert (result.returncode, json.loads(file.read_text())["metadata"]["name"]) == (1, "vm")


def test_a_pod_that_was_replaced_meanwhile_stays(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    one = ended(0, phase="Succeeded", spec=NEVER)
    kubectl.answers("get pod/", {**one, "metadata": {**one["metadata"], "uid": "another"}})
    having(kubectl, one)
    result = kubectl_gpuvm("start", "vm", env=kubectl.env)
    assert result.stderr.startswith("kubectl-gpuvm: vms/vm: is gone or another pod meanwhile; see `kubectl gpuvm list`")
    assert changes(kubectl) == []


def test_a_pod_that_owns_its_manifest_is_not_deleted(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    owner = {"kind": "Pod", "name": "vm", "uid": "uid-of-vm"}
    kubectl.answers("get configmap/", {"kind": "ConfigMap", "metadata": {"name": "x", "ownerReferences": [owner]}})
    having(kubectl, ended(0, phase="Succeeded", spec=NEVER))
    result = kubectl_gpuvm("start", "vm", env=kubectl.env)
    assert re.fullmatch(
        "kubectl-gpuvm: vm: owns ConfigMap gpu-launcher-\\S+, which would be deleted with it; "
        "`kubectl gpuvm apply --restart -f vm.yaml` makes both anew\n",
        result.stderr,
    )
    assert (result.returncode, changes(kubectl)) == (1, [])


def test_a_pod_that_waits_for_a_node_is_deleted(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    having(kubectl, pending("0/1 nodes", spec=NEVER))
    kubectl_gpuvm("stop", "vm", env=kubectl.env)
    assert changes(kubectl) == [["kubectl", "delete", "pod/vm", "--wait=false"]]


@pytest.mark.parametrize(
    ("kind", "off", "on"),
    [
        ("Deployment", {"replicas": 0}, {"replicas": 3}),
        ("StatefulSet", {"replicas": 0}, {"replicas": 3}),
        ("Job", {"suspend": True}, {"suspend": False}),
    ],
)
def test_a_controller_stops_and_starts_what_it_makes(
    kubectl_gpuvm: Command, kubectl: StandIn, kind: str, off: object, on: object
) -> None:
    having(kubectl, controller(kind, applied=3), pod("vm-0", vm="vm", owner=f"{kind}/vm"))
    assert kubectl_gpuvm("stop", "vm", env=kubectl.env).stdout == "vm: is asked to shut down\n"
    assert kubectl_gpuvm("start", "vm", env=kubectl.env).stdout == f"vm: its {kind} starts it\n"
    patch = ["kubectl", "patch", f"{kind.lower()}/vm", "--type=merge", "--patch"]
    assert changes(kubectl) == [[*patch, json.dumps({"spec": off})], [*patch, json.dumps({"spec": on})]]


def test_by_force_the_guest_ends_now_and_its_controller_knows_first(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    waits = pending("0/1 nodes", name="vm-1", vm="vm", owner="StatefulSet/vm")
    having(kubectl, controller("StatefulSet"), pod("vm-0", vm="vm", owner="StatefulSet/vm"), waits)
    result = kubectl_gpuvm("stop", "vm", "--force", "--grace-period=0", env=kubectl.env)
    assert result.stdout == "vm: ends now\n"
    assert [call[1] for call in changes(kubectl)] == ["patch", "exec"]
    assert changes(kubectl)[1][-2:] == ["ctl", "kill"]


@pytest.mark.parametrize("now", [None, ended(0), {**pod(), "metadata": {**pod()["metadata"], "uid": "another"}}])
def test_a_guest_that_ended_before_it_could_be_ended_is_stopped(
    kubectl_gpuvm: Command, kubectl: StandIn, now: dict[str, Any] | None
) -> None:
    kubectl.answers("exec", err='Error from server (NotFound): pods "vm" not found', code=1)
    kubectl.answers("get pod/vm", [now] if now else "")
    having(kubectl, pod(spec=ALWAYS))
    result = kubectl_gpuvm("stop", "vm", "--force", env=kubectl.env)
    assert (result.stdout.partition(";")[0], result.stderr) == ("vm: ends now", "")
    assert [call[1] for call in changes(kubectl)] == ["delete", "exec"]


def test_a_guest_that_still_runs_when_it_cannot_be_ended_is_an_error(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    kubectl.answers("exec", err="error: Internal error occurred", code=1)
    kubectl.answers("get pod/vm", [pod(spec=ALWAYS)])
    having(kubectl, pod(spec=ALWAYS))
    result = kubectl_gpuvm("stop", "vm", "--force", env=kubectl.env)
    assert "Internal error occurred" in result.stderr
    assert result.returncode == 1


def test_one_of_several_replicas_cannot_be_stopped(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    replicas = (pod(f"vm-{n}", vm="vm", owner="StatefulSet/vm") for n in range(2))
    having(kubectl, controller("StatefulSet", replicas=2), *replicas)
    result = kubectl_gpuvm("stop", "vm-1", env=kubectl.env)
    assert result.stderr == (
        "kubectl-gpuvm: vm-1: is one of 2 replicas, and StatefulSet would make it anew; `kubectl gpuvm stop vm` stops "
        "all, `restart vm-1` starts this one again\n"
    )
    assert (result.returncode, changes(kubectl)) == (1, [])


def test_a_restart_leaves_a_guest_its_pod_and_cards(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    """The kubelet starts the container again."""
    having(kubectl, pod(spec=ALWAYS))
    result = kubectl_gpuvm("restart", "vm", env=kubectl.env)
    assert result.stdout == "vm: is asked to shut down, and starts again\n"
    assert kubectl.calls == [GET_PODS, in_pod("shutdown")]
    kubectl_gpuvm("restart", "vm", "--force", env=kubectl.env)
    assert kubectl.calls[-1] == in_pod("kill")


def test_a_guest_that_its_pod_does_not_start_again_is_waited_for(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    having(kubectl, pod(spec={"restartPolicy": "OnFailure", "terminationGracePeriodSeconds": 75}))
    assert kubectl_gpuvm("restart", "vm", env=kubectl.env).returncode == 0
    assert [call[2:] for call in changes(kubectl)] == [
        in_pod("shutdown")[2:],
        ["wait", "pod/vm", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=135s"],
        TRIAL,
        ["delete", "pod/vm"],
        CREATE,
    ]


@pytest.mark.parametrize(
    ("words", "objects", "wrong"),
    [
        (["start", "vm"], [pod()], "vm: is Running already; `kubectl gpuvm restart`"),
        (["stop", "vm"], [ended(2)], "vm: is not running: its pod has failed\n"),
        (["restart", "vm"], [ended(0, phase="Succeeded")], "vm: is not running: its pod has succeeded; `kubectl gpuvm"),
        (
            ["restart", "vm"],
            [pod(owner="Job/vm", spec=NEVER)],
            "vm: is a Job's, which runs a guest once; apply it again",
        ),
        (
            ["start", "vm"],
            [ended(2, owner="Job/other")],
            "vm: belongs to Job other, and would not any more; have its owner make it anew",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line_and_changes_nothing(
    kubectl_gpuvm: Command, kubectl: StandIn, words: list[str], objects: list[Any], wrong: str
) -> None:
    having(kubectl, *objects)
    result = kubectl_gpuvm(*words, env=kubectl.env)
    assert (result.stderr.count("\n"), result.returncode, changes(kubectl)) == (1, 1, [])
    assert result.stderr.startswith(f"kubectl-gpuvm: {wrong}")
