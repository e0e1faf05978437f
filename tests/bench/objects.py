"""What the bench has the API server hold, and what the scheduler makes of pods."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from pci import slices as words
from tests.bench.control_plane import ControlPlane, until

Object = dict[str, Any]

_RESOURCE = "resource.k8s.io/v1"


def device_class(name: str, resource: str | None, *expressions: str) -> Object:
    spec: Object = {"selectors": [{"cel": {"expression": each}} for each in expressions]}
    named = {} if resource is None else {"extendedResourceName": resource}
    return {"apiVersion": _RESOURCE, "kind": "DeviceClass", "metadata": {"name": name}, "spec": {**spec, **named}}


IS_OURS = f'device.driver == "{words.DRIVER}"'
CLASS = device_class(words.DRIVER, None, IS_OURS)


def node_with(name: str, **resources: str) -> Object:
    room = {"cpu": "128", "memory": "1Ti", "pods": "500", **resources}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def slice_of(node: str, devices: list[Object], driver: str = words.DRIVER) -> Object:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices}
    metadata = {"name": f"{node}-{driver}"}
    return {"apiVersion": _RESOURCE, "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def taking(name: str, pool: str, device: str, driver: str = words.DRIVER) -> Object:
    """A claim to which this device is allocated."""
    result = {"request": "one", "driver": driver, "pool": pool, "device": device}
    return {
        "apiVersion": _RESOURCE,
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": words.DRIVER}}]}},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


def without_conditions(each: Object) -> Object:
    """The object without binding conditions, which no driver is here to fulfil: pods would wait for them."""
    for device in each["spec"].get("devices", ()) if each["kind"] == "ResourceSlice" else ():
        for name in ("bindingConditions", "bindingFailureConditions"):
            device.pop(name, None)
    return each


def template_of(name: str, claim: Mapping[str, Any]) -> Object:
    return {
        "apiVersion": _RESOURCE,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": claim},
    }


def pod_of(name: str, selector: Mapping[str, str], template: str | None, resources: Mapping[str, str]) -> Object:
    """A pod that asks for the template's claim and for these resources."""
    asks: Object = {"requests": resources, "limits": resources}
    spec: Object = {"nodeSelector": selector}
    if template is not None:
        asks["claims"] = [{"name": "claim"}]
        spec["resourceClaims"] = [{"name": "claim", "resourceClaimTemplateName": template}]
    spec["containers"] = [{"name": "c", "image": "none", "resources": asks}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def template_and_pod(name: str, claim: Mapping[str, Any], selector: Mapping[str, str]) -> Iterator[Object]:
    yield template_of(name, claim)
    yield pod_of(name, selector, name, {})


def judged(plane: ControlPlane, names: Collection[str], seconds: float, pause: float = 0.1) -> dict[str, Object]:
    """The pods of these names, once the scheduler has placed each, or has said why not."""

    def asked() -> dict[str, Object]:
        return {name: pod for pod in plane.every("Pod") if (name := pod["metadata"]["name"]) in names}

    until("each pod is placed, or is not", lambda: all(map(_is_judged, asked().values())), seconds, pause)
    return asked()


def _is_judged(pod: Mapping[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(each["type"] == "PodScheduled" for each in conditions)


def claims_of(plane: ControlPlane) -> dict[str, Object]:
    return {claim["metadata"]["name"]: claim for claim in plane.every("ResourceClaim")}


def cards_of(pod: Mapping[str, Any], claims: Mapping[str, Any]) -> list[str]:
    """In the order of the requests: those of the pod's own claim, then those for its resources."""
    status = pod.get("status", {})
    names = [each.get("resourceClaimName") for each in status.get("resourceClaimStatuses", ())]
    names += [status.get("extendedResourceClaimStatus", {}).get("resourceClaimName")]
    return [result["device"] for name in names if name in claims for result in _results(claims[name])]


def _results(claim: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    results = (claim.get("status") or {}).get("allocation", {}).get("devices", {}).get("results", ())
    return sorted(results, key=lambda result: str(result["request"]))
