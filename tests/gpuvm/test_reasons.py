"""Why a VM is not running: each reason, and its one answer. What others say is in Kubernetes 1.36's words."""

from typing import Any, NamedTuple

import pytest

from gpuvm.objects import Controller, Event, Pod, ResourceClaim
from gpuvm.reasons import answer, no_pod
from launcher.vm.memory.checks import memlock
from program.problem import Problem
from tests.gpuvm.cluster import CARD, CREATED, controller, ended, event, holding, pending, pod, terminated, waiting


class Case(NamedTuple):
    pod: dict[str, Any]
    answer: str
    events: tuple[dict[str, Any], ...] = ()
    last_line: str = ""
    claims: tuple[dict[str, Any], ...] = ()


PREBIND = 'running PreBind plugin "DynamicResources": claim gpus binding failed'
WAITED = (
    "; wait: after 10 minutes it takes other cards, and the driver's log says more: `kubectl logs -n kube-system -l "
    "app.kubernetes.io/name=gpu-plugin`"
)
GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
DELETED = {"deletionTimestamp": "2026-11-22T12:10:00Z", "deletionGracePeriodSeconds": 75}
OFF = "`kubectl taint node NODE node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`"

DENIED = (
    "ValidatingAdmissionPolicy 'gpu-namespaces' with binding 'gpu-namespaces' denied request: "
    f"namespace vms may not have {CARD}; it may have nvidia.com/L40S-24Q (ConfigMap gpu-namespaces)"
)
MAY_NOT = (
    f"your namespace may not have {CARD}: it may have nvidia.com/L40S-24Q; ask for what it may have, or ask "
    "whoever runs the cluster: docs/tenants.md"
)
OVER = (
    "exceeded quota: gpus, requested: gpu-launcher.dev.deviceclass.resource.k8s.io/devices=1, used: "
    "gpu-launcher.dev.deviceclass.resource.k8s.io/devices=2, limited: "
    "gpu-launcher.dev.deviceclass.resource.k8s.io/devices=2"
)


def unclaimed(words: str, **more: Any) -> Case:
    """A pod whose claim the API server has refused to make, in these words."""
    claims = [{"name": "gpu-launcher", "resourceClaimTemplateName": "gpu-launcher-vm-1"}]
    pending = pod(phase="Pending", node=None, ready=False, scheduled={"type": "Other", "status": "True"},
                  spec={"resourceClaims": claims}, **more)  # fmt: skip
    name = 'resourceclaims.resource.k8s.io "vm-gpu-launcher-x" is forbidden: '
    of = event("FailedResourceClaimCreation", f"PodResourceClaim gpu-launcher: create ResourceClaim : {name}{words}")
    return Case(pending, "", (of,))


CASES = {
    "a class's quota": unclaimed(OVER)._replace(
        answer="vms/vm: is Pending: your namespace may not have more: its quota gpus is "
        "gpu-launcher.dev.deviceclass.resource.k8s.io/devices=2, of which "
        "gpu-launcher.dev.deviceclass.resource.k8s.io/devices=2 is used, and "
        "gpu-launcher.dev.deviceclass.resource.k8s.io/devices=1 is asked for; stop what uses it"
    ),
    "devices of others": unclaimed(DENIED)._replace(answer=f"vms/vm: is Pending: {MAY_NOT}"),
    "another team's taint": unclaimed(
        "ValidatingAdmissionPolicy 'gpu-teams' with binding 'gpu-teams' denied request: "
        "namespace vms may not tolerate the taint gpu-launcher.dev/team=red; it has no label gpu-launcher.dev/team"
    )._replace(
        answer="vms/vm: is Pending: your namespace may not tolerate the taint gpu-launcher.dev/team=red: it has no "
        "label gpu-launcher.dev/team; ask for"
    ),
    "no template": unclaimed(
        'PodResourceClaim gpu-launcher: resource claim template "gpu-launcher-vm-1": '
        'resourceclaimtemplate.resource.k8s.io "gpu-launcher-vm-1" not found'
    )._replace(
        answer="vms/vm: is Pending: there is no ResourceClaimTemplate gpu-launcher-vm-1; apply the VM again: if the "
        "API server refuses the template, it says why"
    ),
    "another reason for no claim": unclaimed("no moon")._replace(
        answer="vms/vm: is Pending: a claim cannot be made for it (PodResourceClaim gpu-launcher: create "
        'ResourceClaim : resourceclaims.resource.k8s.io "vm-gpu-launcher-x" is forbidden: no moon); see its '
        "ResourceClaimTemplate"
    ),
    "a quota that was raised": unclaimed(
        OVER, status={"resourceClaimStatuses": [{"name": "gpu-launcher", "resourceClaimName": "vm-gpu-launcher-y"}]}
    )._replace(answer="vms/vm: is Pending: no scheduler has looked at it (default-scheduler)"),
    "no card is free": Case(
        pending(
            f"0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient {CARD}. no new claims to "
            "deallocate, preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
        ),
        f"vms/vm: is Pending: no node has a free {CARD} (0/3 nodes are available: 1 node(s) had untolerated taint(s), "
        f"2 Insufficient {CARD}. no new claims to deallocate); `kubectl get nodes -o yaml` has what each offers",
    ),
    "no card fits its claims": Case(
        pending("0/2 nodes are available: 1 cannot allocate all claims, 1 node(s) had untolerated taint(s)."),
        "vms/vm: is Pending: no node has free cards that its claims accept (0/2 nodes are available: 1 cannot allocate "
        "all claims, 1 node(s) had untolerated taint(s)); see the cards below",
    ),
    "a claim is not there": Case(
        pending('0/2 nodes are available: resourceclaim "team-gpus" not found.'),
        "vms/vm: is Pending: a claim that it names is not there: team-gpus (",
    ),
    "huge pages": Case(
        pending("0/1 nodes are available: 1 Insufficient hugepages-1Gi."),
        "vms/vm: is Pending: no node has as many free hugepages-1Gi (0/1 nodes are available: 1 Insufficient "
        "hugepages-1Gi); reserve more",
    ),
    "memory": Case(
        pending("0/2 nodes are available: 2 Insufficient memory."),
        "vms/vm: is Pending: no node has enough memory left (",
    ),
    "a claim for a disk is not there": Case(
        pending('0/1 nodes are available: persistentvolumeclaim "root" not found. not found'),
        "vms/vm: is Pending: there is no PersistentVolumeClaim root (",
    ),
    "a claim for a disk has no volume": Case(
        pending("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"),
        "vms/vm: is Pending: a PersistentVolumeClaim of its has no volume (",
    ),
    "a selector": Case(
        pending("0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 node(s) didn't match Pod's node "
                "affinity/selector."),
        "vms/vm: is Pending: no node has the labels that it selects (",
    ),
    "a cordoned node": Case(
        pending("0/1 nodes are available: 1 node(s) were unschedulable."),
        "vms/vm: is Pending: the nodes left are cordoned (0/1 nodes are available: 1 node(s) were unschedulable); "
        "`kubectl uncordon NODE`",
    ),
    "a taint": Case(
        pending("0/1 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }."),
        "vms/vm: is Pending: the nodes left have taints that it does not tolerate (",
    ),
    "what is not known here": Case(
        pending("0/1 nodes are available: 1 node(s) had no moon."),
        "vms/vm: is Pending: no node takes it (0/1 nodes are available: 1 node(s) had no moon); read the scheduler's",
    ),
    "a queue": Case(
        pod(phase="Pending", node=None, ready=False, scheduled=GATED,
            spec={"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}),
        "vms/vm: is Pending: scheduling gates hold it back: kueue.x-k8s.io/admission; the queue admits it",
    ),
    "no scheduler": Case(
        pod(phase="Pending", node=None, ready=False, scheduled={"type": "Initialized", "status": "True"},
            spec={"schedulerName": "volcano"}),
        "vms/vm: is Pending: no scheduler has looked at it (volcano); see whether a scheduler of that name runs",
    ),
    "an image": Case(
        waiting("ImagePullBackOff", 'Back-off pulling image "gpu-launcher:9"'),
        'vms/vm: is Pending: its image cannot be pulled (Back-off pulling image "gpu-launcher:9"); see the name',
    ),
    "a card that is not ready": Case(
        pod(phase="Pending", node=None, ready=False, scheduled={"type": "Other", "status": "True"}),
        f"vms/vm: is Pending: the scheduler waits until pci-1 of gpu-1 can be used{WAITED}",
        claims=(holding("gpus", "pci-1"),),
    ),
    "cards of two claims, one of which is not ready": Case(
        pending("claim vms/other is being allocated"),
        "vms/vm: is Pending: the scheduler waits until pci-2 of gpu-1 can be used (pci-2: Ready is False; look)"
        f"{WAITED}",
        claims=(holding("gpus", "pci-1", Ready=True, Failed=False), holding("more", "pci-2", Ready=False)),
    ),
    "a card that cannot be made ready": Case(
        pending(PREBIND),
        "vms/vm: is Pending: pci-2 of gpu-1 cannot be made ready for it (pci-2: Failed is True; look); the scheduler "
        "looks for other cards, and the driver's log says more",
        claims=(holding("gpus", "pci-1"), holding("more", "pci-2", Ready=False, Failed=True)),
    ),
    "a card that is not ready, of a claim that may not be seen": Case(
        pod(phase="Pending", node=None, ready=False, scheduled={"type": "Other", "status": "True"}),
        "vms/vm: is Pending: its cards are made ready for it (waiting for binding conditions for device on node "
        f"gpu-1){WAITED}",
        (event("BindingConditionsPending", "waiting for binding conditions for device on node gpu-1", kind="Normal"),),
    ),
    "a card that is ready": Case(
        pending("0/1 nodes are available: 1 Insufficient memory."),
        "vms/vm: is Pending: no node has enough memory left (",
        claims=(holding("gpus", "pci-1", Ready=True, Failed=False),),
    ),
    "a deletion while a card is not ready": Case(
        pending("", metadata=DELETED),
        "vms/vm: is Terminating: it was deleted",
        claims=(holding("gpus", "pci-1"),),
    ),
    "a ConfigMap": Case(
        waiting("ContainerCreating"),
        'vms/vm: is Pending: there is no ConfigMap gpu-launcher-vm-1 (MountVolume.SetUp failed for volume "manifest" : '
        'configmap "gpu-launcher-vm-1" not found); `kubectl gpuvm apply -f vm.yaml` makes the manifest\'s',
        (event("FailedMount",
               'MountVolume.SetUp failed for volume "manifest" : configmap "gpu-launcher-vm-1" not found'),),
    ),
    "a secret": Case(
        waiting("ContainerCreating"),
        'vms/vm: is Pending: there is no Secret keys (MountVolume.SetUp failed for volume "keys" : secret "keys" not '
        "found); make it: the manifest names it",
        (event("FailedMount", 'MountVolume.SetUp failed for volume "keys" : secret "keys" not found'),),
    ),
    "a seccomp profile": Case(
        waiting("CreateContainerError", "failed to create containerd container: cannot load seccomp profile "
                '"/var/lib/kubelet/seccomp/gpu-launcher/vm.json": open /var/lib/kubelet/seccomp/gpu-launcher/vm.json: '
                "no such file or directory"),
        "vms/vm: is Pending: its node lacks the seccomp profile gpu-launcher/vm.json (failed to create containerd",
    ),
    "an AppArmor profile": Case(
        waiting("CreateContainerError", "failed to generate spec opts: apparmor profile not found gpu-launcher"),
        "vms/vm: is Pending: its node lacks the AppArmor profile that it names (failed to generate spec opts: apparmor",
    ),
    "a volume on another node": Case(
        waiting("ContainerCreating"),
        'vms/vm: is Pending: its volume is still attached to another node (Multi-Attach error for volume "pvc-1" '
        f"Volume is already exclusively attached to one node and can't be attached to another); stop the pod that has "
        f"it there; of a node that is off for good: {OFF}",
        (
            event("Scheduled", "Successfully assigned vms/vm to node-1", kind="Normal"),
            event("FailedAttachVolume", 'Multi-Attach error for volume "pvc-1" Volume is already exclusively attached '
                  "to one node and can't be attached to another"),
        ),
    ),
    "a claim that the driver does not prepare": Case(
        waiting("ContainerCreating"),
        "vms/vm: is Pending: the DRA driver cannot prepare its claim (Failed to prepare dynamic resources: "
        "0000:01:00.0: is not on vfio-pci; bind it); the driver's log on the node says more",
        (event("FailedPrepareDynamicResources",
               "Failed to prepare dynamic resources: 0000:01:00.0: is not on vfio-pci; bind it"),),
    ),
    "a device that the node does not give": Case(
        pod(phase="Failed", ready=False, state={"waiting": {"reason": "ContainerCreating"}}, status={
            "reason": "UnexpectedAdmissionError",
            "message": f"Allocate failed due to no healthy devices present; cannot allocate unhealthy devices {CARD}, "
            "which is unexpected",
        }),
        "vms/vm: is Failed: its node could not give it the devices (Allocate failed due to no healthy devices present; "
        f"cannot allocate unhealthy devices {CARD}, which is unexpected); gpu-plugin's log on the node says why",
    ),
    "an eviction": Case(
        pod(phase="Failed", ready=False, status={
            "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage. ",
        }),
        "vms/vm: is Failed: its node has evicted it (The node was low on resource: ephemeral-storage); give it what",
    ),
    "a lost node": Case(
        pod(ready=False, metadata=DELETED, status={"conditions": [DISRUPTED]}),
        f"vms/vm: is Terminating: its node is lost; bring the node back; if it is off for good: {OFF}",
    ),
    "a deletion": Case(
        pod(metadata=DELETED),
        "vms/vm: is Terminating: it was deleted, and the guest has until 2026-11-22T12:10:00Z to shut down (75 s in "
        "all); wait; `kubectl gpuvm stop --force` ends the guest now",
    ),
    "a manifest that the launcher refuses": Case(
        ended(2),
        "vms/vm: is Failed: the manifest or a variable is wrong (exit code 2): gpu 'gpu1': no device is left; ask",
        last_line="gpu 'gpu1': no device is left; ask for one",
    ),
    "a card that is gone": Case(
        ended(1),
        "vms/vm: is Failed: the launcher could not start or keep the guest (exit code 1): gpu 'gpu1': 0000:41:00.0 is "
        "not in sysfs; expected all functions of its card in /sys: the device is gone",
        last_line="gpu 'gpu1': 0000:41:00.0 is not in sysfs; expected all functions of its card in /sys: the device is "
        "gone, or the variable is another node's",
    ),
    "memory that may not be locked": Case(
        ended(1),
        "vms/vm: is Failed: the launcher could not start or keep the guest (exit code 1): RLIMIT_MEMLOCK: VFIO and SEV "
        "lock the guest's memory: 5120 MiB with libvirt's reserve, and this container may lock 8 MiB; start the n",
        last_line=str(memlock(5 << 30, 8 << 20)),
    ),
    "a VM of a Job that was asked to end": Case(
        ended(16),
        "vms/vm: is Failed: it was to run to the guest's own end, and was asked to end before (exit code 16); docs/tr",
    ),
    "a QEMU that crashed, again and again": Case(
        pod(ready=False, state={"waiting": {"reason": "CrashLoopBackOff"}}, last_state=terminated(12)),
        "vms/vm: is Running: QEMU was killed (by the kernel, when memory is short) or has crashed: the log has its "
        "last words (exit code 12): vms/vm: QEMU was killed by signal 9; docs/troubleshooting.md has the codes",
        last_line="vms/vm: QEMU was killed by signal 9",
    ),
    "more memory than its limit": Case(
        ended(137, reason="OOMKilled"),
        "vms/vm: is Failed: its container used more memory than its limit; set memory.reservedOverhead.addedOverhead",
    ),
    "a signal": Case(ended(143), "vms/vm: is Failed: signal 15 has ended the launcher (exit code 143); docs/tr"),
    "a guest that is off": Case(
        ended(0, reason="Completed", phase="Succeeded"),
        "vms/vm: is Succeeded: the guest has powered itself off, or was asked to; `kubectl gpuvm start` starts it",
    ),
    "a guest that starts": Case(
        pod(ready=False),
        "vms/vm: is Starting: the guest does not run yet: pinning 64 GiB; `kubectl gpuvm state` and `logs -f` follow",
        last_line="pinning 64 GiB",
    ),
    "a paused guest": Case(
        pod(ready=False, ready_since="2026-11-22T12:00:01Z"),
        "vms/vm: is Paused: its guest does not run any more (paused: I/O error of disk root); `kubectl gpuvm unpause` ",
        last_line="paused: I/O error of disk root",
    ),
    "a guest that has not run since its container started": Case(
        pod(ready=False, ready_since=CREATED), "vms/vm: is Starting: "
    ),
    "a guest that its own probe calls not ready": Case(
        pod(ready=False, ready_since="2026-11-22T12:00:01Z", of="probes"), "vms/vm: is Starting: "
    ),
    "nothing": Case(pod(), "vms/vm: is Running: nothing keeps it"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_reason_has_its_one_answer(name: str) -> None:
    case = CASES[name]
    pod, events = Pod.model_validate(case.pod), [*map(Event.model_validate, case.events)]
    claims = [*map(ResourceClaim.model_validate, case.claims)]
    found = str(answer(pod, events, case.last_line, claims=claims))
    assert found[: len(case.answer)] == case.answer


def test_the_latest_warning_counts() -> None:
    texts = ('configmap "old" not found', 'configmap "new" not found')
    events = [Event.model_validate(event("FailedMount", text)) for text in texts]
    assert answer(Pod.model_validate(waiting("ContainerCreating")), events, "").wrong.startswith(
        "is Pending: there is no ConfigMap new ("
    )


def without_pod(message: str = "", replicas: int = 1) -> Problem:
    """The answer for a controller which the API server told that, if anything."""
    refusals = [Event.model_validate(event("FailedCreate", message))] if message else []
    return no_pod(Controller.model_validate(controller("StatefulSet", replicas=replicas)), refusals)


def test_a_controller_without_a_pod_says_what_the_api_server_refused() -> None:
    refused = 'pods "vm-0" is forbidden: violates PodSecurity "baseline:latest": seccompProfile'
    assert str(without_pod(refused)) == (
        'vms/vm: is without a pod: the API server refuses it (pods "vm-0" is forbidden: violates PodSecurity '
        '"baseline:latest": seccompProfile); print it for the level that its '
        "namespace enforces, `gpu-launcher pod --level`: docs/restricted.md"
    )
    assert str(without_pod(DENIED)) == f"vms/vm: is without a pod: {MAY_NOT}"
    assert without_pod(replicas=0).fix == "`kubectl gpuvm start`"
    assert without_pod().wrong == "is without a pod: its controller has made none yet"


def test_a_deployment_says_what_its_replica_set_was_refused() -> None:
    refused = 'pods "vm-5d4b-x" is forbidden: exceeded quota: gpus, requested: pods=1, used: pods=4, limited: pods=4'
    told = controller("Deployment")
    progress = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetCreated", "message": "created"}
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": refused}
    told["status"] = {"conditions": [progress, failure]}
    assert str(no_pod(Controller.model_validate(told), ())) == (
        "vms/vm: is without a pod: your namespace may not have more: its quota gpus is pods=4, of which pods=4 "
        "is used, and pods=1 is asked for; stop what uses it, or have the quota raised: `kubectl describe quota`"
    )
    failure["status"] = "False"
    assert no_pod(Controller.model_validate(told), ()).wrong == "is without a pod: its controller has made none yet"
