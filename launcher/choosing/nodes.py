"""A cluster's Nodes as the scheduler sees them: what each offers, its pods, and its taints; the pods that wait for a
node; and what a pod asks of a node, in the scheduler's numbers (k8s.io/component-helpers/resource, PodRequests).

The objects are those of `kubectl get nodes,pods -A -o json`. An object of another form is a UserError that names it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from launcher.choosing.affinity import Taint, read_taint
from launcher.choosing.objects import EXPECTED, full_name, names, objects_of, part_of, subject_of
from launcher.fields.quantity import parse_amount
from program.errors import Nonsense, UserError

Amounts: TypeAlias = Mapping[str, Decimal]
"""Exact amounts by resource: CPUs, bytes, devices."""

_LONGEST = 64  # characters of a quantity
#: What a pod can ask for as a whole (KEP-2837), and huge pages.
_OF_THE_POD = ("cpu", "memory")


def requests_of(pod: Mapping[str, Any]) -> Amounts:
    """Return a pod's requests: the sum of its containers, or its largest init container if that is more, plus its
    overhead. A sidecar, an init container with restartPolicy Always, counts with both. UserError for another form than
    the API's.
    """
    spec, allocated = part_of(pod, "spec", pod), _given(pod)
    total = _sum(_of_container(each, allocated, pod) for each in objects_of(spec, "containers", pod))
    sidecars: Amounts = {}
    largest: Amounts = {}
    for each in objects_of(spec, "initContainers", pod):
        if each.get("restartPolicy") == "Always":
            its = _of_container(each, allocated, pod)
            total, sidecars = _sum((total, its)), _sum((sidecars, its))
            largest = _most((largest, sidecars))
        else:
            largest = _most((largest, _sum((sidecars, _of_container(each, {}, pod)))))
    total = _most((total, largest))
    whole = amounts_of(part_of(spec, "resources", pod), "requests", pod)
    total = {**total, **{name: amount for name, amount in whole.items() if _is_of_the_pod(name)}}
    return _sum((total, amounts_of(spec, "overhead", pod)))


def amounts_of(part: Mapping[str, Any], key: str, owner: Mapping[str, Any]) -> Amounts:
    """Read amounts by resource; UserError for one that is no quantity."""
    try:
        return {str(name): amount_of(value) for name, value in part_of(part, key, owner).items()}
    except Nonsense as error:
        raise UserError(subject_of(owner), f"{key}: {error.wrong}", EXPECTED) from error


def amount_of(value: Any) -> Decimal:
    """Return a quantity's exact value; Nonsense for any other value."""
    return _amount(str(value)[:_LONGEST])


@lru_cache(4096)
def _amount(text: str) -> Decimal:
    return parse_amount(text).exact


def _given(pod: Mapping[str, Any]) -> Mapping[str, Amounts]:
    """Return what containers have been given, by name: more than they request while a pod is resized."""
    status = part_of(pod, "status", pod)
    return {
        str(each.get("name")): _most(
            (amounts_of(part_of(each, "resources", pod), "requests", pod), amounts_of(each, "allocatedResources", pod))
        )
        for key in ("containerStatuses", "initContainerStatuses")
        for each in objects_of(status, key, pod)
        if each.get("resources") is not None
    }


def _of_container(container: Mapping[str, Any], allocated: Mapping[str, Amounts], pod: Mapping[str, Any]) -> Amounts:
    """Return a container's requests, or what it has been given if that is more."""
    resources = part_of(container, "resources", pod)
    # The API server does the same: who has only a limit asks for as much.
    requests = {**amounts_of(resources, "limits", pod), **amounts_of(resources, "requests", pod)}
    return _most((requests, allocated.get(str(container.get("name")), {})))


def _is_of_the_pod(resource: str) -> bool:
    return resource in _OF_THE_POD or resource.startswith("hugepages-")


def _sum(parts: Iterable[Amounts]) -> Amounts:
    total: dict[str, Decimal] = {}
    for name, amount in _each(parts):
        total[name] = total.get(name, Decimal(0)) + amount
    return total


def _most(parts: Iterable[Amounts]) -> Amounts:
    largest: dict[str, Decimal] = {}
    for name, amount in _each(parts):
        largest[name] = max(largest.get(name, amount), amount)
    return largest


def _each(parts: Iterable[Amounts]) -> Iterator[tuple[str, Decimal]]:
    return (item for part in parts for item in part.items())


#: Pods of these phases have nothing any more.
_ENDED = ("Succeeded", "Failed")


class RunningPod(NamedTuple):
    """A pod that is on a node, as NAMESPACE/NAME, and its requests."""

    name: str
    requests: Amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node and the pods on it. `capacity` includes unhealthy devices and what is reserved for the system;
    `allocatable` is for pods."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    is_cordoned: bool
    capacity: Amounts
    allocatable: Amounts
    pods: tuple[RunningPod, ...]

    def free(self, resource: str) -> Decimal:
        """Return the amount that no pod has requested; negative if a pod came past the scheduler."""
        taken = sum((pod.requests.get(resource, Decimal(0)) for pod in self.pods), Decimal(0))
        return self.allocatable.get(resource, Decimal(0)) - taken

    def offers(self, resource: str) -> bool:
        """Return whether the node has any of a resource, healthy or not."""
        return max(self.capacity.get(resource, 0), self.allocatable.get(resource, 0)) > 0


def nodes_of(objects: Iterable[Mapping[str, Any]]) -> tuple[dict[str, NodeState], dict[str, Mapping[str, Any]]]:
    """Return the nodes by name, and the pods without a node by NAMESPACE/NAME. Ignore other kinds."""
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
