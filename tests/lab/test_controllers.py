"""A VM by a Deployment, a StatefulSet or a Job, with a real API server and its controllers. There is no node: pods stay
Pending."""

import json
import re
from typing import Any

import pytest

from launcher.pod.security import Confinement, Level
from tests.lab.conftest import Timed
from tests.lab.control_plane import Cluster
from tests.lab.pods import printed
from tests.lab.waiting import CommandFailed, Patience
from tests.launcher.pod.test_levels import printed_pods, violations

_LABEL = "vmi.kubevirt.io/id=desk"


def vm(strategy: str, memory: str = "1Gi") -> dict[str, Any]:
    domain = {"memory": {"guest": memory}, "devices": {"gpus": [{"name": "gpu", "deviceName": "nvidia.com/pgpu"}]}}
    spec = {"runStrategy": strategy, "template": {"spec": {"domain": domain}}}
    return {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "desk"}, "spec": spec}


def applied(cluster: Cluster, document: dict[str, Any], *flags: str) -> None:
    cluster.kubectl("apply", "--validate=strict", "-f", "-", stdin=printed(document, *flags))


def every(cluster: Cluster, kind: str) -> list[Any]:
    return cluster.get_all(kind, "-l", _LABEL)


def pods(cluster: Cluster, number: int) -> dict[str, Any]:
    """By name, once there are so many."""

    def found() -> list[Any]:
        items = every(cluster, "pods")
        return items if len(items) == number else []

    return {pod["metadata"]["name"]: pod for pod in Patience().until(f"{number} pods", found, 60)}


def manifest_of(pod: Any) -> str:
    return str(pod["spec"]["volumes"][0]["configMap"]["name"])


def manifests(cluster: Cluster) -> set[str]:
    return set(map(manifest_of, every(cluster, "pods")))


def removed(cluster: Cluster, kind: str) -> None:
    cluster.kubectl("delete", f"{kind},configmap,pdb,pvc", "-l", _LABEL)
    Patience().until("no pod is left", lambda: not every(cluster, "pods"), 60)


def test_twenty_vms_of_a_stateful_set_have_names_that_stay_and_claims_of_their_own(
    cluster: Cluster, timed: Timed
) -> None:
    document = vm("Always")
    document["spec"]["template"]["spec"]["domain"]["firmware"] = {"bootloader": {"efi": {"persistent": True}}}
    flags = ("--as", "statefulset", "--replicas", "20", "--max-unavailable", "1")
    with timed("twenty VMs of a StatefulSet, until all have their pods"):
        applied(cluster, document, *flags)
        found = pods(cluster, 20)
    assert found.keys() == {f"desk-{index}" for index in range(20)}
    for name, pod in found.items():
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        claim = volumes["gpu-launcher-state"]["persistentVolumeClaim"]["claimName"]
        assert claim == f"gpu-launcher-state-{name}"
        assert pod["spec"]["hostname"] == name
    cluster.kubectl("delete", "pod", "desk-7")
    assert pods(cluster, 20)["desk-7"]["metadata"]["uid"] != found["desk-7"]["metadata"]["uid"]
    assert cluster.get("pdb", "desk")["spec"]["maxUnavailable"] == 1
    removed(cluster, "statefulset")


@pytest.mark.parametrize("kind", ["deployment", "statefulset"])
def test_a_changed_manifest_is_rolled_out_and_old_ones_go_with_the_controller(cluster: Cluster, kind: str) -> None:
    applied(cluster, vm("Always"), "--as", kind)
    seen = set(map(manifest_of, pods(cluster, 1).values()))
    uid = cluster.get(kind, "desk")["metadata"]["uid"]

    def rolled_out() -> set[str]:
        new = manifests(cluster) - seen
        if kind == "statefulset" and not new:  # it waits for a pod that is not ready, as none is without a node
            cluster.kubectl("delete", "pod", "desk-0", "--ignore-not-found")
        return new

    for memory in ("2Gi", "3Gi", "4Gi"):
        applied(cluster, vm("Always", memory), "--as", kind, "--owner", uid)
        seen |= Patience().until("a pod of the new manifest", rolled_out, 60)
    assert len(seen) == len(every(cluster, "configmap")) == 4
    cluster.kubectl("delete", kind, "desk")
    # The first one was applied before its owner's uid was known.
    Patience().until("the owned ones are gone", lambda: len(every(cluster, "configmap")) == 1, 60)
    cluster.kubectl("delete", "configmap", "-l", _LABEL)


def test_each_attempt_and_each_index_of_a_job_knows_its_name(cluster: Cluster) -> None:
    applied(cluster, vm("RerunOnFailure"), "--as", "job", "--replicas", "3")
    indexes = set()
    for pod in pods(cluster, 3).values():
        variables = {each["name"]: each for each in pod["spec"]["containers"][0]["env"]}
        assert variables["GPU_LAUNCHER_NAME"]["value"] == "desk-$(GPU_LAUNCHER_INDEX)"
        annotation = variables["GPU_LAUNCHER_INDEX"]["valueFrom"]["fieldRef"]["fieldPath"]
        assert annotation == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
        indexes.add(pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"])
    assert indexes == {"0", "1", "2"}
    removed(cluster, "job")


def test_a_job_is_over_as_its_guests_exit_code_says(cluster: Cluster) -> None:
    """Its pod is told to have ended: 2 is a wrong manifest, 12 a QEMU that crashed, 0 a guest that has powered off."""
    applied(cluster, vm("RerunOnFailure"), "--as", "job")
    ended(cluster, next(iter(pods(cluster, 1))), 12)
    first, second = sorted(pods(cluster, 2).values(), key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
    assert first["status"]["phase"] == "Failed"
    name = next(pod["metadata"]["name"] for pod in (first, second) if pod["status"]["phase"] == "Pending")
    ended(cluster, name, 0)
    cluster.kubectl("wait", "job/desk", "--for=condition=Complete", "--timeout=60s", seconds=90)
    removed(cluster, "job")
    applied(cluster, vm("RerunOnFailure"), "--as", "job")
    ended(cluster, next(iter(pods(cluster, 1))), 2)
    cluster.kubectl("wait", "job/desk", "--for=condition=Failed", "--timeout=60s", seconds=90)
    removed(cluster, "job")


def ended(cluster: Cluster, pod: str, code: int) -> None:
    """As the kubelet tells it."""
    state = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
    status = {"name": "compute", "image": "x", "imageID": "x", "ready": False, "restartCount": 0, "state": state}
    patch = {"status": {"phase": "Failed" if code else "Succeeded", "containerStatuses": [status]}}
    cluster.kubectl("patch", "pod", pod, "--subresource=status", "--type=merge", "-p", json.dumps(patch))


@pytest.mark.parametrize("level", [Level.BASELINE, Level.RESTRICTED])
def test_the_api_server_admits_each_pod_at_the_level_that_it_was_printed_for(cluster: Cluster, level: Level) -> None:
    """Of every manifest of fixtures/vms. And at the level privileged it refuses those that our reading of its rules
    does (tests/launcher/pod/test_levels.py)."""
    label = {"pod-security.kubernetes.io/enforce": level.value}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": level.value, "labels": label}})
    Patience().until("its account is there", lambda: cluster.get("serviceaccount", "default", "-n", level.value), 60)
    after, _ = printed_pods(Confinement(level))
    assert _refused(cluster, level, after) == set()
    before, _ = printed_pods(Confinement())
    assert _refused(cluster, level, before) == {
        name for name, pod in before.items() if any(violations(pod["spec"], level))
    }


def _refused(cluster: Cluster, level: Level, pods: dict[str, Any]) -> set[str]:
    """The names of the pods that violate the level, as the API server says; the others it takes."""
    asked = []
    for name, pod in pods.items():
        # What is not there is refused before.
        spec = {
            key: value for key, value in pod["spec"].items() if key not in ("serviceAccountName", "priorityClassName")
        }
        asked.append(json.dumps({**pod, "metadata": {"name": name, "namespace": level.value}, "spec": spec}))
    try:
        said = cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin="\n---\n".join(asked))
    except CommandFailed as failed:
        said = str(failed)
    refused = set(re.findall(r'pods "(\S+)" is forbidden: violates PodSecurity', said))
    errors = re.findall(r"(?im)^(?:kubectl .*: )?error.*", said)
    assert [error for error in errors if "violates PodSecurity" not in error] == []
    return refused
