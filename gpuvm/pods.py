"""VMs as the API server has them: the pods that `gpu-launcher pod` made, and the controllers that make such pods."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuvm.kubectl import ClusterObject, Kubectl
from pci.resource import NodeDevice
from program.errors import Refusal, UserError

#: The label of every pod of gpu-launcher's, and of KubeVirt's, by which `kubectl get` finds them.
ID_LABEL = "vmi.kubevirt.io/id"
#: The annotation that only gpu-launcher's pods have.
MARK = "gpu-launcher.dev/memory"
#: The container in which the launcher runs.
CONTAINER = "compute"
#: Where the pod mounts the ConfigMap with the manifest.
MANIFEST_VOLUME, MANIFEST_FILE = "gpu-launcher-manifest", "vm.yaml"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

CONTROLLERS = "deployments,statefulsets,jobs"
_OWN_RESOURCES = frozenset(device.value for device in NodeDevice)
_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class VM:
    """A pod, or a controller that has none: a VM that is stopped. `vm` is the VM's name, `name` the object's.

    `cards` are the resources that it asks for, by number, and its claims; `devices` the IDs that the kubelet tells.
    """

    kind: str
    namespace: str
    name: str
    vm: str
    state: str
    node: str
    addresses: tuple[str, ...]
    cards: tuple[str, ...]
    devices: tuple[str, ...]
    created: str


def vms(kubectl: Kubectl, *more: str) -> list[ClusterObject]:
    """Return the pods and controllers of VMs, as the API server has them."""
    found = kubectl.objects(f"pods,{CONTROLLERS}", "-l", ID_LABEL, *more)
    return [each for each in found if _is_ours(each)]


def pod_named(kubectl: Kubectl, name: str) -> ClusterObject:
    """Return the pod of that name, or the one pod of the VM of that name. Refusal if there is none, UserError for a VM
    with several."""
    pods = [each for each in kubectl.objects("pods", "-l", ID_LABEL) if _is_ours(each)]
    found = pods_of(pods, name)
    if not found:
        raise no_such(name)
    if len(found) > 1:
        names = ", ".join(sorted(each["metadata"]["name"] for each in found))
        raise UserError(name, f"has {len(found)} pods", f"name one of them: {names}")
    return found[0]


def no_such(name: str) -> Refusal:
    return Refusal(
        name, "there is no such VM in this namespace", "`kubectl gpuvm list -A` lists all; name its namespace with -n"
    )


def pods_of(objects: Iterable[ClusterObject], name: str) -> list[ClusterObject]:
    """Return the pod of that name, or else the pods of the VM of that name, without those that have ended or are being
    deleted if there are others."""
    pods = [each for each in objects if each["kind"] == "Pod"]
    if exact := [pod for pod in pods if pod["metadata"]["name"] == name]:
        return exact
    its = [pod for pod in pods if vm_of(pod) == name]
    alive = [pod for pod in its if "deletionTimestamp" not in pod["metadata"] and not has_ended(pod)]
    return alive or its


def controller_of(objects: Iterable[ClusterObject], name: str) -> ClusterObject | None:
    """Return the controller of the VM, or of the pod, of that name; None for a pod by itself."""
    objects = list(objects)
    names = {name, *(vm_of(pod) for pod in pods_of(objects, name) if pod["metadata"].get("ownerReferences"))}
    return next((each for each in objects if each["kind"] != "Pod" and vm_of(each) in names), None)


def vm_of(each: Mapping[str, Any]) -> str:
    return str(each["metadata"].get("labels", {}).get(ID_LABEL, each["metadata"]["name"]))


def has_ended(each: Mapping[str, Any]) -> bool:
    """Return whether a pod or a Job has ended; no other controller does."""
    if each["kind"] == "Pod":
        return each.get("status", {}).get("phase") in _ENDED
    return any(condition(each, kind).get("status") == "True" for kind in ("Complete", "Failed"))


def container_of(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the launcher's container; an empty mapping if somebody has taken it out."""
    return next((each for each in spec_of(pod).get("containers", ()) if each.get("name") == CONTAINER), {})


def status_of(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the status of the launcher's container; an empty mapping before there is one."""
    statuses = pod.get("status", {}).get("containerStatuses", ())
    return next((each for each in statuses if each.get("name") == CONTAINER), {})


def condition(each: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    conditions = each.get("status", {}).get("conditions") or ()
    return next((one for one in conditions if one.get("type") == kind), {})


def applied(each: Mapping[str, Any]) -> ClusterObject | None:
    """Return the object as `kubectl apply` got it last; None for one that was made otherwise."""
    text = each["metadata"].get("annotations", {}).get(LAST_APPLIED)
    try:
        found = json.loads(text) if text else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def config_map_of(each: Mapping[str, Any]) -> str | None:
    """Return the name of the ConfigMap with the manifest of a pod or a controller."""
    volumes = spec_of(each).get("volumes", ())
    return next((one["configMap"]["name"] for one in volumes if one.get("name") == MANIFEST_VOLUME), None)


def claim_names_of(pod: ClusterObject) -> list[str]:
    """Return the names of the pod's ResourceClaims that there are, or are to be."""
    status = pod.get("status", {})
    made = [*(status.get("resourceClaimStatuses") or ()), status.get("extendedResourceClaimStatus") or {}]
    names = (each.get("resourceClaimName") for each in (*(pod["spec"].get("resourceClaims") or ()), *made))
    return sorted({str(name) for name in names if name})


def spec_of(each: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the pod's spec of a pod, or of a controller."""
    spec: Mapping[str, Any] = each.get("spec", {})
    return spec if each["kind"] == "Pod" else spec.get("template", {}).get("spec", {})


def listed(objects: Sequence[ClusterObject]) -> tuple[VM, ...]:
    """Return the VMs of these objects: each pod, and each controller without one."""
    pods = [each for each in objects if each["kind"] == "Pod"]
    alive = {(pod["metadata"]["namespace"], vm_of(pod)) for pod in pods}
    others = [
        each for each in objects if each["kind"] != "Pod" and (each["metadata"]["namespace"], vm_of(each)) not in alive
    ]
    rows = (_row(each) for each in (*pods, *others))
    return tuple(sorted(rows, key=lambda row: (row.namespace, row.name)))


def _row(each: ClusterObject) -> VM:
    metadata, status, spec = each["metadata"], each.get("status", {}), spec_of(each)
    addresses = [address.get("ip", "") for address in status.get("podIPs") or ()]
    return VM(
        kind=each["kind"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        vm=vm_of(each),
        state=state_of(each),
        node=spec.get("nodeName", ""),
        addresses=tuple(filter(None, addresses)),
        cards=_cards(each),
        devices=_devices(each),
        created=metadata.get("creationTimestamp", ""),
    )


def state_of(each: Mapping[str, Any]) -> str:
    """Return the state of a VM in the words of KubeVirt's `kubectl get vm` (VirtualMachinePrintableStatus)."""
    if each["kind"] != "Pod":
        return "Stopped" if is_stopped(each) else "Starting"
    phase, waiting = each.get("status", {}).get("phase"), status_of(each).get("state", {}).get("waiting", {})
    if "deletionTimestamp" in each["metadata"]:
        return "Terminating"
    if phase in _ENDED:
        return str(phase)
    if condition(each, "PodScheduled").get("status") == "False":
        reason = condition(each, "PodScheduled").get("reason")
        return "ErrorUnschedulable" if reason == "Unschedulable" else str(reason or "Pending")
    if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
        return str(waiting["reason"])
    return "Running" if condition(each, "Ready").get("status") == "True" else "Starting"


def is_stopped(controller: Mapping[str, Any]) -> bool:
    """Return whether a controller is to have no pod: it is scaled to 0, or a Job is suspended or has ended."""
    spec = controller["spec"]
    return has_ended(controller) or bool(spec.get("suspend")) or spec.get("replicas") == 0


def _cards(each: Mapping[str, Any]) -> tuple[str, ...]:
    resources = container_of(each).get("resources", {})
    counted = [
        f"{count} {name}"
        for name, count in resources.get("limits", {}).items()
        if "/" in name and name.rpartition("/")[2] not in _OWN_RESOURCES
    ]
    return (*sorted(counted), *(f"claim {claim['name']}" for claim in resources.get("claims", ())))


def _devices(each: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the devices that the kubelet tells with the pod's health (KEP-4680, Kubernetes 1.36 and later)."""
    told = status_of(each).get("allocatedResourcesStatus") or ()
    return tuple(
        str(one.get("resourceID"))
        for resource in told
        if str(resource.get("name")).rpartition("/")[2] not in _OWN_RESOURCES
        for one in resource.get("resources") or ()
    )


def _is_ours(each: Mapping[str, Any]) -> bool:
    metadata = (
        each["metadata"] if each["kind"] == "Pod" else each.get("spec", {}).get("template", {}).get("metadata", {})
    )
    return MARK in (metadata.get("annotations") or {})
