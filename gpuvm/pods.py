"""VMs among the objects of a cluster: pods that `gpu-launcher pod` made, and controllers that make such pods."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuvm.kubectl import Kubectl
from gpuvm.objects import MARK, Controller, Pod, VMObject
from pci.resource import NodeDevice
from program.errors import Refusal, UserError

_OWN_RESOURCES = frozenset(device.value for device in NodeDevice)


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


def vms(kubectl: Kubectl, *, everywhere: bool = False) -> list[VMObject]:
    """Return the pods and controllers of VMs, as the API server has them."""
    return [each for each in kubectl.vms(everywhere=everywhere) if _is_ours(each)]


def pod_named(kubectl: Kubectl, name: str) -> Pod:
    """Return the pod of that name, or the one pod of the VM of that name. Refusal if there is none, UserError for a VM
    with several."""
    pods = pods_of([each for each in kubectl.pods() if _is_ours(each)], name)
    if not pods:
        raise no_such(name)
    if len(pods) > 1:
        names = ", ".join(sorted(each.name for each in pods))
        raise UserError(name, f"has {len(pods)} pods", f"name one of them: {names}")
    return pods[0]


def no_such(name: str) -> Refusal:
    return Refusal(
        name, "there is no such VM in this namespace", "`kubectl gpuvm list -A` lists all; name its namespace with -n"
    )


def pods_of(objects: Iterable[VMObject], name: str) -> list[Pod]:
    """Return the pod of that name, or else the pods of the VM of that name, without those that have ended or are being
    deleted if there are others."""
    pods = [each for each in objects if isinstance(each, Pod)]
    if exact := [pod for pod in pods if pod.name == name]:
        return exact
    its = [pod for pod in pods if pod.vm == name]
    alive = [pod for pod in its if not pod.metadata.deletion_timestamp and not pod.has_ended]
    return alive or its


def controller_of(objects: Iterable[VMObject], name: str) -> Controller | None:
    """Return the controller of the VM, or of the pod, of that name; None for a pod by itself."""
    objects = list(objects)
    names = {name, *(pod.vm for pod in pods_of(objects, name) if pod.metadata.owner_references)}
    return next((each for each in objects if isinstance(each, Controller) and each.vm in names), None)


def listed(objects: Sequence[VMObject]) -> tuple[VM, ...]:
    """Return the VMs of these objects: each pod, and each controller without one."""
    alive = {(each.metadata.namespace, each.vm) for each in objects if isinstance(each, Pod)}
    shown = [each for each in objects if isinstance(each, Pod) or (each.metadata.namespace, each.vm) not in alive]
    return tuple(sorted(map(_row, shown), key=lambda row: (row.namespace, row.name)))


def _row(each: VMObject) -> VM:
    return VM(
        kind=each.kind,
        namespace=each.metadata.namespace,
        name=each.name,
        vm=each.vm,
        state=state_of(each),
        node=each.spec.node_name,
        addresses=tuple(address.ip for address in each.ips if address.ip) if isinstance(each, Pod) else (),
        cards=_cards(each),
        devices=_devices(each) if isinstance(each, Pod) else (),
        created=each.metadata.creation_timestamp,
    )


def state_of(each: VMObject) -> str:
    """Return the state of a VM in the words of KubeVirt's `kubectl get vm` (VirtualMachinePrintableStatus)."""
    if isinstance(each, Controller):
        return "Stopped" if each.is_stopped else "Starting"
    scheduled, waiting = each.condition("PodScheduled"), each.launcher.waiting
    if each.metadata.deletion_timestamp:
        return "Terminating"
    if each.has_ended:
        return each.phase
    if scheduled.status == "False":
        return "ErrorUnschedulable" if scheduled.reason == "Unschedulable" else scheduled.reason or "Pending"
    if waiting and waiting.reason not in ("", "ContainerCreating", "PodInitializing"):
        return waiting.reason
    return "Running" if each.condition("Ready").status == "True" else "Starting"


def _cards(each: VMObject) -> tuple[str, ...]:
    resources = each.spec.launcher
    counted = [f"{count} {name}" for name, count in resources.limits.items() if "/" in name and not _is_own(name)]
    return (*sorted(counted), *(f"claim {claim.name}" for claim in resources.claims))


def _devices(pod: Pod) -> tuple[str, ...]:
    """Return the devices that the kubelet tells with the pod's health (KEP-4680, Kubernetes 1.36 and later)."""
    statuses = pod.launcher.allocated_resources_status
    return tuple(one.resource_id for each in statuses if not _is_own(each.name) for one in each.resources)


def _is_own(resource: str) -> bool:
    return resource.rpartition("/")[2] in _OWN_RESOURCES


def _is_ours(each: VMObject) -> bool:
    return MARK in each.annotations
