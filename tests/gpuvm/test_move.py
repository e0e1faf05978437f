"""move: the second pod waits before the first one sends, and no pod is deleted that may have the guest."""

import json
from typing import Any

import pytest

from tests.conftest import Command
from tests.gpuvm.cluster import Object, golden, pod, terminated
from tests.gpuvm.standin import StandIn
from tests.gpuvm.test_changes import changes
from tests.gpuvm.test_records import having

ALWAYS = {"restartPolicy": "Always"}
INVITATION = '{"port": 49152, "fingerprint": "ab", "token": "cd"}\n'
XML = "<domain><memory unit='KiB'>16777216</memory></domain>"
RUNNING = {"phase": "running", "state": "running"}
DATA = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}


def source(**more: Any) -> Object:
    """The guest's pod, with a claim for its disk and no card but by a template."""
    made = pod("desk", spec=ALWAYS, **more)
    made["spec"]["volumes"].append(DATA)
    return made


def target(**more: Any) -> Object:
    return pod("desk-xx", vm="desk", node="node-2", metadata={
        "annotations": {**golden()["metadata"]["annotations"], "gpu-launcher.dev/moved-from": "uid-of-desk"}
    }, **more)  # fmt: skip


def claim(*modes: str) -> Object:
    metadata = {"name": "data", "namespace": "vms", "uid": "u"}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": {"accessModes": modes}}


@pytest.fixture
def cluster(kubectl: StandIn) -> StandIn:
    """A cluster in which the target's pod waits for a guest."""
    kubectl.answers("get pod/desk ", [source()])
    kubectl.answers("get pod/desk-", [target()])
    kubectl.answers("get persistentvolumeclaim/data", [claim("ReadWriteMany")])
    kubectl.answers("^create", "pod/desk-xx created\n")
    kubectl.answers("^delete", "pod deleted\n")
    kubectl.answers("ctl receive", INVITATION)
    kubectl.answers("ctl xml", XML)
    kubectl.answers("ctl take")
    return kubectl


def of(kubectl: StandIn, *words: str) -> list[str]:
    """The standard inputs of the calls with these words."""
    calls = zip(kubectl.calls, kubectl.given, strict=True)
    return [given for call, given in calls if all(word in call for word in words)]


def steps(kubectl: StandIn) -> list[str]:
    """What was changed or asked of launchers: kubectl's verb, or the pod's name and ctl's."""
    short = {"exec": lambda call: f"{call[call.index('-c') - 1]} {call[call.index('ctl') + 1]}"}
    return [short.get(call[0], lambda call: f"{call[0]} {call[1]}")(call) for call in changes(kubectl)]


def test_a_guest_is_sent_when_its_other_pod_waits_for_it(kubectl_gpuvm: Command, cluster: StandIn) -> None:
    cluster.answers("ctl send")
    having(cluster, source())
    result = kubectl_gpuvm("move", "desk", "--to", "node-2", env=cluster.env)
    assert (result.stderr, result.returncode) == ("", 0)
    assert (
        "desk: stands still while up to 16.0 GiB go to node-2, 14 s at 10 Gbit/s and 137 s at 1 Gbit/s" in result.stdout
    )
    assert result.stdout.endswith("desk: goes on in pod desk-xx, on node-2\n")
    asked, made, *others = steps(cluster)
    assert (asked, made.startswith("create")) == ("pod/desk xml", True)
    assert others == ["pod/desk-xx receive", "pod/desk send", "pod/desk-xx take", "delete pod/desk"], "at once"
    assert of(cluster, "send", "10.244.1.5") == [INVITATION], "not on a command line"


def test_the_other_pod_is_the_live_one_but_for_its_name_its_node_and_whom_it_waits_for(
    kubectl_gpuvm: Command, cluster: StandIn
) -> None:
    cluster.answers("ctl send")
    having(cluster, source())
    kubectl_gpuvm("move", "desk", "--to", "node-2", env=cluster.env)
    made, live = json.loads(of(cluster, "create")[0]), source()
    (container,), (before,) = made["spec"]["containers"], live["spec"]["containers"]
    assert made["metadata"]["name"].startswith("desk-")
    assert made["metadata"]["labels"] == live["metadata"]["labels"]
    assert made["metadata"]["annotations"]["gpu-launcher.dev/moved-from"] == "uid-of-desk"
    assert container["command"] == [*before["command"], "--receive"]
    assert {"name": "GPU_LAUNCHER_NAME", "value": "desk"} in container["env"]
    (term,) = made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-2"]}]}
    for part in ("volumes", "resourceClaims", "securityContext"):
        assert made["spec"].get(part) == live["spec"].get(part)


def test_a_guest_that_is_not_sent_keeps_its_pod(kubectl_gpuvm: Command, cluster: StandIn) -> None:
    cluster.answers("ctl send", "not sent\n", "gpu-launcher: tpm: keeps its state on a claim; suspend the VM\n", 1)
    cluster.answers("desk-xx.*ctl state", json.dumps({"phase": "preparing", "state": ""}))
    having(cluster, source())
    result = kubectl_gpuvm("move", "desk", env=cluster.env)
    assert (result.returncode, "tpm: keeps its state on a claim; suspend the VM" in result.stderr) == (1, True)
    assert "take" not in " ".join(steps(cluster))
    assert [step for step in steps(cluster) if step.startswith("delete")] == ["delete pod/desk-xx"]


def test_nothing_is_deleted_if_nobody_says_whether_the_guest_is_sent(kubectl_gpuvm: Command, cluster: StandIn) -> None:
    cluster.answers("ctl send", "", "error: dial tcp: i/o timeout\n", 1)
    having(cluster, source())
    result = kubectl_gpuvm("move", "desk", env=cluster.env)
    assert (result.returncode, "`kubectl gpuvm move desk` again finds out" in result.stderr) == (1, True)
    assert not [step for step in steps(cluster) if step.startswith("delete")]


def test_a_move_that_was_cut_off_after_the_guest_left_is_finished(kubectl_gpuvm: Command, cluster: StandIn) -> None:
    having(cluster, source(state=terminated(18), ready=False), target())
    result = kubectl_gpuvm("move", "desk", env=cluster.env)
    assert result.returncode == 0, result.stderr
    assert set(steps(cluster)) == {"pod/desk-xx take", "delete pod/desk"}


def test_a_move_that_was_cut_off_before_is_undone(kubectl_gpuvm: Command, cluster: StandIn) -> None:
    cluster.answers("desk-xx.*ctl state", json.dumps({"phase": "preparing", "state": ""}))
    cluster.answers("pod/desk .*ctl state", json.dumps(RUNNING))
    having(cluster, source(), target())
    result = kubectl_gpuvm("move", "desk", env=cluster.env)
    assert (result.returncode, "runs where it was" in result.stderr) == (1, True)
    assert [step for step in steps(cluster) if step.startswith("delete")] == ["delete pod/desk-xx"]


@pytest.mark.parametrize(
    "at_source",
    [{"phase": "running", "state": "paused"}, {"phase": "stopping", "state": "paused"}],
    ids=["while it is sent", "just when it is"],
)
def test_no_pod_is_deleted_while_a_guest_is_on_its_way(
    kubectl_gpuvm: Command, cluster: StandIn, at_source: Object
) -> None:
    cluster.answers("desk-xx.*ctl state", json.dumps({"phase": "starting", "state": ""}))
    cluster.answers("pod/desk .*ctl state", json.dumps(at_source))
    having(cluster, source(), target())
    assert kubectl_gpuvm("move", "desk", env=cluster.env).returncode == 1
    assert not [step for step in steps(cluster) if step.startswith(("delete", "pod/desk-xx take"))]


def test_a_source_that_was_killed_leaves_the_choice_to_a_person(kubectl_gpuvm: Command, cluster: StandIn) -> None:
    cluster.answers("desk-xx.*ctl state", json.dumps({"phase": "starting", "state": ""}))
    having(cluster, source(state=terminated(137), ready=False), target())
    result = kubectl_gpuvm("move", "desk", env=cluster.env)
    assert (result.returncode, "gpu-launcher ctl take` has it go on there" in result.stderr) == (1, True)
    assert not [step for step in steps(cluster) if step.startswith("delete") or "take" in step]


HOST_DISK = {"name": "local", "hostPath": {"path": "/srv/disk.img", "type": "File"}}


@pytest.mark.parametrize(
    ("modes", "words", "says"),
    [
        (["ReadWriteOnce"], ["--to", "node-2"], "claim data: is ReadWriteOnce, and both pods have to have it at once"),
        (["ReadWriteOnce"], [], "claim data: is ReadWriteOnce"),
        (["ReadWriteOncePod"], ["--to", "node-1"], "claim data: is ReadWriteOncePod"),
    ],
)
def test_a_disk_that_both_cannot_have_is_named_before_anything_is_made(
    kubectl_gpuvm: Command, kubectl: StandIn, modes: list[str], words: list[str], says: str
) -> None:
    kubectl.answers("get persistentvolumeclaim/data", [claim(*modes)])
    having(kubectl, source())
    result = kubectl_gpuvm("move", "desk", *words, env=kubectl.env)
    assert (says in result.stderr, result.returncode, changes(kubectl)) == (True, 1, []), result.stderr


def test_what_is_its_nodes_or_its_controllers_is_not_moved(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    kubectl.answers("get persistentvolumeclaim/data", [claim("ReadWriteMany")])
    local = source()
    local["spec"]["volumes"].append(HOST_DISK)
    having(kubectl, local)
    assert "local: is /srv/disk.img of node-1" in kubectl_gpuvm("move", "desk", env=kubectl.env).stderr
    assert changes(kubectl) == []


def test_a_replica_stays_its_controllers(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    having(kubectl, source(owner="StatefulSet/desk"))
    result = kubectl_gpuvm("move", "desk", env=kubectl.env)
    assert (result.returncode, "belongs to StatefulSet desk, which would make its pod anew" in result.stderr) == (
        1,
        True,
    )
    assert changes(kubectl) == []


def test_an_apply_beside_a_moved_pod_does_not_make_a_second_one(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    from tests.gpuvm.test_changes import FLAGS, VM

    moved = pod("no-devices-xx", vm="no-devices", metadata={
        "annotations": {**golden()["metadata"]["annotations"], "gpu-launcher.dev/moved-from": "u"}
    })  # fmt: skip
    kubectl.answers("get pods,\\S+ -l vmi.kubevirt.io/id=", [moved])
    kubectl.answers("get pod/no-devices")
    result = kubectl_gpuvm("apply", "-f", str(VM), *FLAGS, env=kubectl.env)
    assert (result.returncode, "no-devices-xx: runs with another manifest" in result.stderr) == (1, True), result.stderr
    assert changes(kubectl) == []
