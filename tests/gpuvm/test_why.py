"""kubectl gpuvm why, as a process: what it asks, and the one answer with what it was taken from."""

import json
import re

from tests.clusters import node_of
from tests.conftest import Command
from tests.gpuvm.cluster import CARD, controller, ended, event, golden, holding, pending, pod, terminated
from tests.gpuvm.standin import StandIn
from tests.gpuvm.test_verbs import GET_ALL

TAINT = {"key": "role", "effect": "NoSchedule"}
UNCLAIMED = "0/1 nodes are available: 1 cannot allocate all claims. preemption: 0/1 nodes are available."


def test_why_a_vm_is_pending_is_one_line_and_below_it_are_the_nodes(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    said = f"0/2 nodes are available: 2 Insufficient {CARD}."
    vm = pending(said)
    kubectl.answers("get pods", [vm])
    kubectl.answers("get events", [event("FailedScheduling", said)])
    kubectl.answers("get configmap/", golden(kind="ConfigMap"))
    kubectl.answers("get nodes,pods --all-namespaces", [node_of("gpu-1"), node_of("cp", taints=[TAINT]), vm])
    result = kubectl_gpuvm("why", "vm", env=kubectl.env)
    meant = "nvidia.com/GA102_GEFORCE_RTX_3090 (cp has 4, gpu-1 has 4)"
    assert result.stdout.splitlines() == [
        f"vms/vm: is Pending: no node offers nvidia.com/TU106_GEFORCE_RTX_2060_REV__A; did you mean {meant}?",
        f"event: FailedScheduling: {said}",
        "",
        "vms/vm fits on none of 2 nodes.",
        "",
        "cp: has the taint role:NoSchedule",
        "note: no node has a pod here, so all of it counts as free: get nodes,pods -A",
    ]
    get = ["kubectl", "get", "events", "--field-selector=involvedObject.uid=uid-of-vm", "--namespace=vms"]
    assert kubectl.calls[:2] == [GET_ALL, [*get, "--ignore-not-found", "-o", "json"]]
    assert result.returncode == 0


def test_the_last_line_of_a_launcher_that_failed_is_in_its_pod(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    said = "gpu-launcher: defined vms/vm\ngpu-launcher: memory.guest: 3Gi is no multiple of 2Gi; write 4Gi\n"
    kubectl.answers("get pods", [ended(2, said)])
    kubectl.answers("get events", [])
    assert kubectl_gpuvm("why", "vm", env=kubectl.env).stdout == (
        "vms/vm: is Failed: the manifest or a variable is wrong (exit code 2): memory.guest: 3Gi is no multiple of "
        "2Gi; write 4Gi; docs/troubleshooting.md has the codes and the lines\n"
    )


def test_where_the_pod_has_no_line_the_log_has(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    kubectl.answers("get pods", [pod(ready=False, state=terminated(12), last_state=terminated(12))])
    kubectl.answers("get events", err="Error from server (Forbidden): events is forbidden", code=1)
    kubectl.answers("logs pod/vm -c compute --tail=20", "one\ngpu-launcher: vms/vm: QEMU was killed by signal 9\n\n")
    assert kubectl_gpuvm("why", "vm", env=kubectl.env).stdout == (
        "vms/vm: is Running: QEMU was killed (by the kernel, when memory is short) or has crashed: the log has its "
        "last words (exit code 12): vms/vm: QEMU was killed by signal 9; "
        "docs/troubleshooting.md has the codes and the lines\n"
    )


def test_who_may_not_list_nodes_has_the_schedulers_words(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    claims = {"resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "gpu-launcher-one-gpu"}]}
    kubectl.answers("get pods", [pending(UNCLAIMED, spec=claims)])
    kubectl.answers("get events", [])
    kubectl.answers("get configmap/", golden(kind="ConfigMap"))
    asked = "get nodes,pods,resourceslices,resourceclaims,resourceclaimtemplates,deviceclasses --all-namespaces"
    kubectl.answers(asked, err="Error from server (Forbidden): nodes is forbidden", code=1)
    first, empty, fit = kubectl_gpuvm("why", "vm", env=kubectl.env).stdout.splitlines()
    assert first.startswith(
        "vms/vm: is Pending: no node has free cards that its claims accept (0/1 nodes are available"
    )
    assert empty == ""
    assert fit.startswith("fit: kubectl: Error from server (Forbidden): nodes is forbidden; ask for that right")


def test_a_claim_that_is_not_ready_is_looked_up_by_the_name_that_the_pod_has_it_by(
    kubectl_gpuvm: Command, kubectl: StandIn
) -> None:
    made = {"resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": "vm-gpus-x7"}]}
    shared = {
        "resourceClaims": [
            {"name": "gpus", "resourceClaimTemplateName": "a"},
            {"name": "b", "resourceClaimName": "team"},
        ]
    }
    vm = pod(
        phase="Pending", node=None, ready=False, scheduled={"type": "Other", "status": "True"}, status=made, spec=shared
    )
    kubectl.answers("get pods", [vm])
    kubectl.answers("get events", [])
    kubectl.answers("get resourceclaim/team resourceclaim/vm-gpus-x7 --namespace=vms", [holding("vm-gpus-x7", "pci-1")])
    said = kubectl_gpuvm("why", "vm", env=kubectl.env).stdout
    assert said.startswith("vms/vm: is Pending: the scheduler waits until pci-1 of gpu-1 can be used; wait")


def test_where_fit_cannot_look_it_says_why(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    claims = {"resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "gpu-launcher-vm"}]}
    kubectl.answers("get pods", [pending(UNCLAIMED, spec=claims)])
    kubectl.answers("get events|get configmap", [])
    assert re.search(
        r"\nfit: vm: its manifest is not there: ConfigMap gpu-launcher-vm-with-gpu-[0-9a-f]{10}; "
        r"`kubectl gpuvm apply -f vm.yaml` makes it\n$",
        kubectl_gpuvm("why", "vm", env=kubectl.env).stdout,
    )


def test_a_controller_that_may_make_no_pod_says_why(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    kubectl.answers("get pods", [controller("StatefulSet")])
    kubectl.answers("get events", [event("FailedCreate", 'violates PodSecurity "baseline:latest"')])
    result = kubectl_gpuvm("why", "vm", env=kubectl.env)
    assert result.stdout.startswith("vms/vm: is without a pod: the API server refuses it (violates PodSecurity")
    assert "--field-selector=involvedObject.uid=uid-of-owner" in kubectl.calls[-1]


def test_for_programs_it_has_the_parts(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    kubectl.answers("get pods", [pod()])
    kubectl.answers("get events", [event("Unhealthy", "Readiness probe failed")])
    kubectl.answers("logs", "gpu-launcher: vms/vm: the guest runs\n")
    assert json.loads(kubectl_gpuvm("why", "vm", "-o", "json", env=kubectl.env).stdout) == {
        "subject": "vms/vm", "wrong": "is Running: nothing keeps it", "fix": "",
        "events": ["Unhealthy: Readiness probe failed"], "launcher": "vms/vm: the guest runs", "fit": "",
    }  # fmt: skip
