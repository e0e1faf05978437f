"""The pod to which a guest is moved: that of the guest, whose spec was admitted, with what has to be other."""

from collections.abc import Mapping
from typing import Any

from gpuvm.objects import CONTAINER, MOVED_FROM, NAME_VARIABLE, RECEIVE


def target_of(live: Mapping[str, Any], new: Mapping[str, Any], name: str, node: str | None) -> dict[str, Any]:
    """Return the target of a `live` pod, from the pod that would be made in its place. Its VM is called as before."""
    metadata, spec = live["metadata"], new["spec"]
    containers = [
        _receiving(each, metadata["name"]) if each["name"] == CONTAINER else each for each in spec["containers"]
    ]
    annotations = {**new["metadata"]["annotations"], MOVED_FROM: metadata["uid"]}
    affinity = _at_node(spec.get("affinity", {}), node, live["spec"].get("nodeName", ""))
    return {
        **new,
        "metadata": {**new["metadata"], "name": name, "annotations": annotations},
        "spec": {**spec, "containers": containers, "affinity": affinity},
    }


def without_receiving(container: Mapping[str, Any]) -> dict[str, Any]:
    """Return a container whose launcher boots its guest."""
    return {**container, "command": [word for word in container.get("command", ()) if word != RECEIVE]}


def _receiving(container: Mapping[str, Any], vm: str) -> dict[str, Any]:
    own = {"name": NAME_VARIABLE, "value": vm}
    environ = [
        own if each["name"] == NAME_VARIABLE and "valueFrom" in each else each for each in container.get("env", ())
    ]
    return {**container, "env": environ, "command": [*container["command"], RECEIVE]}


def _at_node(affinity: Mapping[str, Any], node: str | None, present: str) -> dict[str, Any]:
    key, required = "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"
    # Of a pod that was moved before, without the node of that time.
    its = affinity.get(key, {})
    terms = its.get(required, {}).get("nodeSelectorTerms", [{}])
    operator, value = ("In", node) if node else ("NotIn", present)
    field = {"key": "metadata.name", "operator": operator, "values": [value]}
    placed = [{**term, "matchFields": [field]} for term in terms]
    return {**affinity, key: {**its, required: {"nodeSelectorTerms": placed}}}
