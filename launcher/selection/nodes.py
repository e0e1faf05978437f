"""A cluster's Nodes as the scheduler sees them: what each offers, which pods have it, and whom it keeps away; and the
pods that wait for one.

The objects are those of `kubectl get nodes,pods -A -o json`. An object of another form is a UserError that names it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

from launcher.selection.objects import full_name, names, objects_of, part_of
from launcher.selection.requests import Amounts, amounts_of, requests_of
from launcher.selection.taints import Taint, read_taint

#: Pods of these phases have nothing any more.
_ENDED = ("Succeeded", "Failed")


class RunningPod(NamedTuple):
    """A pod that is on a node, as NAMESPACE/NAME, and what it asked for."""

    name: str
    asked: Amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node and the pods on it. `capacity` has the unhealthy devices too, and what is reserved for the system;
    `allocatable` is for pods."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    is_cordoned: bool
    capacity: Amounts
    allocatable: Amounts
    pods: tuple[RunningPod, ...]

    def free(self, resource: str) -> Decimal:
        """Return what no pod has asked for; less than nothing where a pod came past the scheduler."""
        taken = sum((pod.asked.get(resource, Decimal(0)) for pod in self.pods), Decimal(0))
        return self.allocatable.get(resource, Decimal(0)) - taken

    def offers(self, resource: str) -> bool:
        """Return whether the node has any of a resource, though it may be unhealthy."""
        return max(self.capacity.get(resource, 0), self.allocatable.get(resource, 0)) > 0


def nodes_of(objects: Iterable[Mapping[str, Any]]) -> tuple[dict[str, NodeState], dict[str, Mapping[str, Any]]]:
    """Return the nodes by name, and the pods that have no node, as NAMESPACE/NAME. Other kinds are passed over."""
    nodes: list[Mapping[str, Any]] = []
    on: dict[str, list[RunningPod]] = defaultdict(list)
    waiting: dict[str, Mapping[str, Any]] = {}
    for each in objects:
        if each.get("apiVersion") != "v1":
            continue
        if each.get("kind") == "Node":
            nodes.append(each)
        elif each.get("kind") == "Pod" and part_of(each, "status", each).get("phase") not in _ENDED:
            node = part_of(each, "spec", each).get("nodeName")
            if node:
                on[str(node)].append(RunningPod(full_name(each), requests_of(each)))
            else:
                waiting[full_name(each)] = each
    return {names(each)[1]: _node(each, on[names(each)[1]]) for each in nodes}, waiting


def _node(node: Mapping[str, Any], pods: Sequence[RunningPod]) -> NodeState:
    spec, status = part_of(node, "spec", node), part_of(node, "status", node)
    labels = part_of(part_of(node, "metadata", node), "labels", node)
    return NodeState(
        name=names(node)[1],
        labels={str(key): str(value) for key, value in labels.items()},
        taints=tuple(read_taint(each, node) for each in objects_of(spec, "taints", node)),
        is_cordoned=spec.get("unschedulable") is True,
        capacity=amounts_of(status, "capacity", node),
        allocatable=amounts_of(status, "allocatable", node),
        pods=tuple(pods),
    )
