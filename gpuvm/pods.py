"""VMs found among a cluster's objects: pods that `gpu-launcher pod` made, and controllers that make such pods."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from gpuvm.kubectl import Kubectl
from gpuvm.objects import MARK, ConfigMap, Controller, Pod, VMObject
from gpuvm.records import Record, current, is_record, record_of, suspended_to, was_stopped
from pci.resource import NodeDevice
from program.errors import Refusal, UserError
from program.output import natural_key

_OWN_RESOURCES = frozenset(device.value for device in NodeDevice)


@dataclass(frozen=True, slots=True)
class VM:
    """A pod; or a controller or record without one, which is a VM that is stopped. `vm` is the VM's name, `name` the
    object's.

    `cards` are the requested resources, by number, and the claims; `devices` the IDs that the kubelet reports.
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


class Look(NamedTuple):
    """`objects` are pods and controllers of VMs, `records` each VM's current record by namespace and VM."""

    objects: list[VMObject]
    records: dict[tuple[str, str], ConfigMap]

    def record(self, vm: str) -> ConfigMap | None:
        """Return the record of a VM; the look has to be at a single namespace."""
        return next((each for (_, name), each in self.records.items() if name == vm), None)


def look(kubectl: Kubectl, *, everywhere: bool = False) -> Look:
    """Return the VMs' objects and records from the API server."""
    labelled = kubectl.vms(everywhere=everywhere)
    objects = [each for each in labelled if not isinstance(each, ConfigMap) and _is_ours(each)]
    return Look(objects, current([each for each in labelled if isinstance(each, ConfigMap)], objects))


def recorded(kubectl: Kubectl, each: VMObject) -> Record:
    """Return the record of a pod or a controller. Refusal if its ConfigMap is gone."""
    name = each.spec.manifest_name
    config_map = kubectl.config_map(name) if name else None
    if config_map is None or not is_record(config_map):
        wrong = f"its manifest is not there: ConfigMap {name}"
        raise Refusal(each.name, wrong, "`kubectl gpuvm apply -f vm.yaml` makes it")
    return record_of(config_map)


def pod_named(kubectl: Kubectl, name: str) -> Pod:
    """Return the pod of that name, or the only pod of the VM of that name. Refusal if there is none, UserError for a VM
    with several."""
    pods = pods_of([each for each in kubectl.pods() if _is_ours(each)], name)
    if not pods:
        if (record := look(kubectl).record(name)) is not None:
            state = "suspended" if suspended_to(record) else "stopped"
            raise Refusal(name, f"is {state}", "`kubectl gpuvm start` starts it")
        raise no_such(name)
    if len(pods) > 1:
        names = ", ".join(sorted((each.name for each in pods), key=natural_key))
        raise UserError(name, f"has {len(pods)} pods", f"name one of them: {names}")
    return pods[0]


def refuse_not_running(pod: Pod) -> None:
    """Raise Refusal if the pod's launcher does not run, and so cannot answer."""
    if pod.has_ended:
        wrong, fix = f"is not running: its pod has {pod.phase.lower()}", f"`kubectl gpuvm start {pod.name}` starts it"
        raise Refusal(pod.name, wrong, fix)
    if pod.launcher.running is None:
        fix = f"`kubectl gpuvm why {pod.name}` says what it waits for"
        raise Refusal(pod.name, f"is {state_of(pod)}: its launcher does not run", fix)


def end_guests(kubectl: Kubectl, pods: Iterable[Pod], by: str = "shutdown") -> None:
    """End the guests that would be suspended when their pods are deleted, `by` a command of ctl. Refusal if one cannot
    be told."""
    for pod in pods:
        if pod.is_suspended_by_its_deletion:
            kubectl.ctl(pod, by)


def no_such(name: str) -> Refusal:
    return Refusal(
        name, "there is no such VM in this namespace", "`kubectl gpuvm list -A` lists all; name its namespace with -n"
    )


def pods_of(objects: Iterable[VMObject], name: str) -> list[Pod]:
    """Return the pod of that name, or else the pods of the VM of that name; those that have ended or are being deleted
    only if there are no others."""
    pods = [each for each in objects if isinstance(each, Pod)]
    if exact := [pod for pod in pods if pod.name == name]:
        return exact
    its = [pod for pod in pods if pod.vm == name]
    alive = [pod for pod in its if not pod.metadata.deletion_timestamp and not pod.has_ended]
    return alive or its


def controller_of(objects: Iterable[VMObject], name: str) -> Controller | None:
    """Return the controller of the VM of that name, or of the pod's VM; None for a pod without a controller."""
    objects = list(objects)
    names = {name, *(pod.vm for pod in pods_of(objects, name) if pod.metadata.owner_references)}
    return next((each for each in objects if isinstance(each, Controller) and each.vm in names), None)


def vms_in(look: Look) -> tuple[VM, ...]:
    """Return the VMs: each pod, each controller without one, and each record without either."""
    pods = {(each.metadata.namespace, each.vm) for each in look.objects if isinstance(each, Pod)}
    shown = [each for each in look.objects if isinstance(each, Pod) or (each.metadata.namespace, each.vm) not in pods]
    with_pods = {(each.metadata.namespace, each.vm) for each in look.objects}
    alone = [record for vm, record in look.records.items() if vm not in with_pods]
    rows = (*map(_row, shown), *map(_without_pod, alone))
    return tuple(sorted(rows, key=lambda row: (natural_key(row.namespace), natural_key(row.name))))


def _without_pod(record: ConfigMap) -> VM:
    """Return a VM that has nothing but its record. Without a mark of `stop` or `suspend` it has never run, or somebody
    else has deleted its pod."""
    return VM(
        kind="ConfigMap",
        namespace=record.metadata.namespace,
        name=record.vm,
        vm=record.vm,
        state="Suspended" if suspended_to(record) else "Stopped" if was_stopped(record) else "NoPod",
        node="",
        addresses=(),
        cards=(),
        devices=(),
        created=record.metadata.creation_timestamp,
    )


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
    if each.is_suspended:
        return "Suspended"
    if each.has_ended:
        return each.phase
    if scheduled.status == "False":
        return "ErrorUnschedulable" if scheduled.reason == "Unschedulable" else scheduled.reason or "Pending"
    if waiting and waiting.reason not in ("", "ContainerCreating", "PodInitializing"):
        return waiting.reason
    if each.is_paused:
        return "Paused"
    return "Running" if each.condition("Ready").status == "True" else "Starting"


def _cards(each: VMObject) -> tuple[str, ...]:
    resources = each.spec.launcher
    counted = [f"{count} {name}" for name, count in resources.limits.items() if "/" in name and not _is_own(name)]
    return (*sorted(counted), *(f"claim {claim.name}" for claim in resources.claims))


def _devices(pod: Pod) -> tuple[str, ...]:
    """Return the devices that the kubelet reports with the pod's health (KEP-4680, Kubernetes 1.36 and later)."""
    statuses = pod.launcher.allocated_resources_status
    return tuple(one.resource_id for each in statuses if not _is_own(each.name) for one in each.resources)


def _is_own(resource: str) -> bool:
    return resource.rpartition("/")[2] in _OWN_RESOURCES


def _is_ours(each: VMObject) -> bool:
    return MARK in each.annotations
