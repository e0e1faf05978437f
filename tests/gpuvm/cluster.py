"""Pods of VMs, and their controllers, as the API server has them: those that `gpu-launcher pod` makes, with a status.

A test holds that all of them are of Kubernetes' schema (tests/openapi.py).
"""

import json
from copy import deepcopy
from typing import Any

import yaml

from tests.processes import FIXTURES

Object = dict[str, Any]
CREATED = "2026-11-22T12:00:00Z"
MANIFEST = (FIXTURES / "pods" / "seed-001-two-gpus.yaml").read_text()
CARD = "nvidia.com/GA102_GEFORCE_RTX_3090"


def golden(name: str = "seed-001-two-gpus", kind: str = "Pod") -> Object:
    """An object of a golden file, as it is applied."""
    found = yaml.load_all((FIXTURES / "pods" / f"{name}.yaml").read_text(), yaml.CSafeLoader)
    return next(each for each in found if each["kind"] == kind)


def pod(
    name: str = "vm",
    *,
    of: str = "seed-001-two-gpus",
    namespace: str = "vms",
    vm: str | None = None,
    phase: str = "Running",
    node: str | None = "node-1",
    ready: bool = True,
    ready_since: str | None = None,
    state: Object | None = None,
    last_state: Object | None = None,
    scheduled: Object | None = None,
    metadata: Object | None = None,
    status: Object | None = None,
    spec: Object | None = None,
    owner: str | None = None,
) -> Object:
    """A pod of a VM. `ready_since` is the time when it became ready, or ceased to be. `state` and
    `last_state` are the container's; `scheduled` is its condition."""
    applied = golden(of)
    applied["metadata"]["name"] = name
    applied["metadata"]["labels"] = {"vm.kubevirt.io/name": vm or name, "vmi.kubevirt.io/id": vm or name}
    applied["spec"].update(spec or {})
    found = deepcopy(applied)
    kept = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(applied)} if owner is None else {}
    found["metadata"]["annotations"].update(kept)
    found["metadata"].update(
        namespace=namespace, uid=f"uid-of-{name}", resourceVersion="1", creationTimestamp=CREATED, **(metadata or {})
    )
    if owner is not None:
        kind, _, owner_name = owner.partition("/")
        found["metadata"]["ownerReferences"] = [
            {"apiVersion": "apps/v1", "kind": kind, "name": owner_name, "uid": "uid-of-owner", "controller": True}
        ]
    if node is not None:
        found["spec"]["nodeName"] = node
    since = {} if ready_since is None else {"lastTransitionTime": ready_since}
    conditions = [{"type": "Ready", "status": "True" if ready else "False", **since}]
    conditions.append(scheduled or {"type": "PodScheduled", "status": "True"})
    found["status"] = {"phase": phase, "conditions": conditions, **(status or {})}
    if node is not None:
        container = {
            "name": "compute", "image": "gpu-launcher:golden", "imageID": "", "ready": ready, "restartCount": 0,
            "started": ready, "state": state or {"running": {"startedAt": CREATED}},
            **({"lastState": last_state} if last_state else {}),
        }  # fmt: skip
        found["status"].setdefault("podIPs", [{"ip": "10.244.1.5"}])
        found["status"].setdefault("containerStatuses", [container])
    return found


def pending(message: str, **more: Any) -> Object:
    """A pod for which the scheduler has no node, with its words."""
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return pod(phase="Pending", node=None, ready=False, scheduled=scheduled, **more)


def waiting(reason: str, message: str = "", **more: Any) -> Object:
    """A pod that has a node, and whose container waits."""
    state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
    return pod(phase="Pending", ready=False, state=state, **more)


def ended(code: int, message: str = "", *, reason: str = "Error", phase: str = "Failed", **more: Any) -> Object:
    """A pod whose container has ended for good."""
    return pod(phase=phase, ready=False, state=terminated(code, message, reason), **more)


def holding(name: str, device: str, **conditions: bool) -> Object:
    """A claim with a device of gpu-1 whose binding conditions are Ready and Failed, and what the driver said of it."""
    of = {"driver": "gpu-launcher.dev", "pool": "gpu-1", "device": device}
    result = {**of, "request": "gpu", "bindingConditions": ["Ready"], "bindingFailureConditions": ["Failed"]}
    told = [
        {"type": kind, "status": str(is_true), "reason": "Said", "message": f"{device}: {kind} is {is_true}; look",
         "lastTransitionTime": CREATED}
        for kind, is_true in conditions.items()
    ]  # fmt: skip
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "vms", "uid": f"uid-of-{name}"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu-launcher.dev"}}]}},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            **({"devices": [{**of, "conditions": told}]} if told else {}),
        },
    }


def terminated(code: int, message: str = "", reason: str = "Error") -> Object:
    return {"terminated": {"exitCode": code, "reason": reason, **({"message": message} if message else {})}}


def controller(kind: str, name: str = "vm", *, replicas: int = 1, applied: int | None = None) -> Object:
    """A controller of a VM; `applied` is how many replicas `kubectl apply` was given."""
    template = pod(name)
    made: Object = {
        "apiVersion": "batch/v1" if kind == "Job" else "apps/v1",
        "kind": kind,
        "metadata": {
            "name": name, "namespace": "vms", "uid": "uid-of-owner", "creationTimestamp": CREATED,
            "labels": {"vm.kubevirt.io/name": name, "vmi.kubevirt.io/id": name},
        },
        "spec": {
            "template": {
                "metadata": {
                    "labels": template["metadata"]["labels"],
                    "annotations": {"gpu-launcher.dev/memory": "= 1Gi requested"},
                },
                "spec": {**golden()["spec"], "restartPolicy": "Never" if kind == "Job" else "Always"},
            },
        },
    }  # fmt: skip
    if kind == "Job":
        made["spec"]["suspend"] = False
    else:
        made["spec"].update(replicas=replicas, selector={"matchLabels": {"vmi.kubevirt.io/id": name}})
    if kind == "StatefulSet":
        made["spec"]["serviceName"] = name
    if applied is not None:
        text = json.dumps({"spec": {"replicas": applied}})
        made["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": text}
    return made


def event(reason: str, message: str, *, about: str = "vm", kind: str = "Warning", time: str = CREATED) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{about}.{reason}", "namespace": "vms"},
        "involvedObject": {"kind": "Pod", "name": about, "namespace": "vms", "uid": f"uid-of-{about}"},
        "type": kind,
        "reason": reason,
        "message": message,
        "lastTimestamp": time,
    }
