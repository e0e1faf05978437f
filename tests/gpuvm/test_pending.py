"""Why a VM is Pending for its nodes: each reason and its one answer, by `fit`, of the pod as the API server has it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from gpuvm.objects import Pod
from gpuvm.reasons import answer, is_for_nodes
from launcher.choosing.cluster import cluster_of
from launcher.choosing.fit import fit_of
from launcher.choosing.obstacles import asking
from launcher.choosing.requirements import NamedClaim
from launcher.vm.cards.annotations import read_selection
from tests.clusters import RTX_3090, claim_of, machine, node_of, pod_on, slices_of
from tests.gpuvm.cluster import pending

Object = dict[str, Any]
CARD = "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A"  # the pod of these tests asks for two
CARDS = {CARD: "4"}
TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
OFF = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
RTX = slices_of(machine("two-rtx-3090"), "gpu-1")


class Case(NamedTuple):
    """`answer` goes on behind "vms/vm: is Pending: "; `spec` is of the pod."""

    objects: Sequence[Object]
    answer: str
    spec: Object | None = None


def asks(**requests: str) -> Object:
    return {"containers": [{"name": "compute", "resources": {"requests": requests}}]}


NEAREST = "no node takes it, and gpu-1 is the nearest"
ONLY = "no node takes it, and gpu-1 is the only one"
CASES = {
    "a resource that nobody offers": Case(
        [node_of("gpu-1"), node_of("gpu-2"), node_of("cp", {RTX_3090: "0"})],
        f"no node offers {CARD}; did you mean {RTX_3090} (gpu-1 has 4, gpu-2 has 4)?",
    ),
    "a resource that others have": Case(
        [
            node_of("gpu-1", CARDS), pod_on("gpu-1", "train-0", {CARD: "2"}), pod_on("gpu-1", "train-1", {CARD: "1"}),
            node_of("cp"),
        ],
        f"{NEAREST}: has 1 of 4 {CARD} free and 2 are asked for (ml/train-0 has 2, ml/train-1 has 1); wait until a pod "
        "that has one has ended, or stop one",
    ),
    "more cards than a node has": Case(
        [node_of("gpu-1", {CARD: "1"}), node_of("cp")],
        f"{NEAREST}: has 1 {CARD} in all and 2 are asked for; ask for devices that one node has",
    ),
    "cards that are unhealthy": Case(
        [node_of("gpu-1", {CARD: "1"}, capacity=CARDS), node_of("cp")],
        f"{NEAREST}: has 4 {CARD}, of which 1 are healthy, and 2 are asked for; `gpu-plugin inventory` on gpu-1 says "
        "what is wrong with the others",
    ),
    "/dev/kvm": Case(
        [node_of("gpu-1", {**CARDS, "devices.gpu-launcher.dev/kvm": "0"})],
        "no node offers devices.gpu-launcher.dev/kvm; gpu-plugin offers it with node_devices: {kvm: 110} in its config",
    ),
    "memory": Case(
        [node_of("gpu-1", CARDS), pod_on("gpu-1", "big", {"memory": "30Gi"}), node_of("cp")],
        f"{NEAREST}: has 2048Mi of 32768Mi memory free and 2432Mi are asked for (ml/big has 30720Mi); stop what has "
        "it, or give the VM less: the pod's annotation gpu-launcher.dev/memory has the sum",
    ),
    "CPUs": Case(
        [node_of("gpu-1", CARDS), pod_on("gpu-1", "a", {"cpu": "15950m"})],
        f"{ONLY}: has 0.05 of 16 cpu free and 0.1 are asked for (ml/a has 15.95); stop what has it, or have the VM ask "
        "for less",
    ),
    "huge pages": Case(
        [node_of("gpu-1")],
        f"{ONLY}: has no hugepages-1Gi; reserve some on a node (hugepages= on its kernel's command line), or leave "
        "memory.hugepages out",
        asks(**{"hugepages-1Gi": "8Gi"}),
    ),
    "a taint": Case(
        [node_of("gpu-1", CARDS, taints=[TAINT]), node_of("cp")],
        f"{NEAREST}: has the taint gpu=yes:NoSchedule; write a toleration into the manifest, or `kubectl taint node "
        "gpu-1 gpu-`",
    ),
    "a node that is off": Case(
        [node_of("gpu-1", CARDS, taints=[OFF])],
        f"{ONLY}: has the taint node.kubernetes.io/unreachable:NoExecute; `kubectl describe node gpu-1` says what is "
        "wrong with it",
    ),
    "a selector": Case(
        [node_of("gpu-1", CARDS, labels={"rack": "2"})],
        f"{ONLY}: has the label rack=2, not rack=1; compare with `kubectl get nodes --show-labels`, label a node, or "
        "change spec.nodeSelector or affinity",
        {"nodeSelector": {"rack": "1"}},
    ),
    "a cordoned node": Case(
        [node_of("gpu-1", CARDS, cordoned=True), node_of("cp")],
        f"{NEAREST}: is cordoned; `kubectl uncordon gpu-1`, when its work is done",
    ),
    "as many pods as a node takes": Case(
        [node_of("gpu-1", {**CARDS, "pods": "1"}), pod_on("gpu-1", "a")],
        f"{ONLY}: has 1 pod, as many as it takes; stop one, or raise the kubelet's maxPods",
    ),
    "a claim by DRA": Case(
        [*RTX, node_of("gpu-1"), claim_of("c", [("gpu-1", "pci-0000-01-00-0"), ("gpu-1", "pci-0000-e1-00-0")], "a")],
        f"{ONLY}: no card here could be request 'gpu-0' of ResourceClaimTemplate vms/cards (2 taken); wait for "
        "0000:01:00.0 of gpu-1 (claim default/c of pod a)",
        {**asks(), "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "cards"}]},
    ),
    "no device by DRA": Case(
        [node_of("gpu-1"), node_of("cp")],
        "no node has published a device by DRA; see whether gpu-plugin serves DRA there: deploy/dra",
        {**asks(), "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "cards"}]},
    ),
    "memory, where the cards of DRA are free": Case(
        [*RTX, node_of("gpu-1", {"memory": "1Gi"})],
        f"{ONLY}: has 1024Mi memory in all and 2048Mi are asked for; give the VM less, or add a larger node",
        {**asks(memory="2Gi"), "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "cards"}]},
    ),
}  # fmt: skip
REQUEST = {"name": "gpu-0", "exactly": {"deviceClassName": "gpu-launcher.dev"}}
TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "cards", "namespace": "vms"},
    "spec": {
        "spec": {"devices": {"requests": [{"name": "gpu-0", "exactly": {"deviceClassName": "gpu-launcher.dev"}}]}}
    },
}


@pytest.mark.parametrize("name", CASES)
def test_each_reason_has_its_one_answer(name: str) -> None:
    case = CASES[name]
    pod = pending("0/2 nodes are available: 2 Insufficient something.", spec=case.spec)
    claims = [
        NamedClaim(each["name"], "ResourceClaimTemplate", each["resourceClaimTemplateName"])
        for each in (case.spec or {}).get("resourceClaims", ())
    ]
    cluster = cluster_of([*case.objects, TEMPLATE])
    found = fit_of("vms/vm", "vms", (), read_selection({}), claims, cluster, dra=False, pod=asking(pod))
    value = Pod.model_validate(pod)
    assert is_for_nodes(value)
    assert str(answer(value, (), "", found.answer)) == f"vms/vm: is Pending: {case.answer}"


def test_what_the_scheduler_lacks_before_it_looks_at_nodes_is_no_matter_of_nodes() -> None:
    without_disk = pending('0/1 nodes are available: persistentvolumeclaim "root" not found.')
    deleted = pending("0/1 nodes are available.", metadata={"deletionTimestamp": "2026-11-22T12:10:00Z"})
    assert not any(is_for_nodes(Pod.model_validate(pod)) for pod in (without_disk, deleted))
