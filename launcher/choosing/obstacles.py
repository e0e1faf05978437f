"""All reasons why a node cannot take a pod: labels, taints, and too little left of what the pod asks for.

As the scheduler filters (NodeUnschedulable, NodeAffinity, TaintToleration, NodeResourcesFit), which stops at the first
reason.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from enum import IntEnum, auto
from typing import Any, NamedTuple

from launcher.choosing.affinity import NodeAffinity, Taint, Toleration, affinity_of, keeps_away, read_toleration
from launcher.choosing.names import MOST_TOLD
from launcher.choosing.nodes import Amounts, NodeState, requests_of
from launcher.choosing.objects import objects_of, part_of, subject_of
from launcher.choosing.requirements import MOST_DEVICES
from program.errors import UserError
from program.problem import summary

#: The taint of a node that is cordoned.
CORDON = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
#: What the keys of taints begin with that Kubernetes itself gives to nodes.
OF_KUBERNETES = "node.kubernetes.io/"
_HUGE_PAGES = "hugepages-"
_BYTES = ("memory", "ephemeral-storage")
_MOST_TOLERATIONS = 1_000
_MEBIBYTE = 1 << 20
Resources = tuple[tuple[str, int], ...]  # and how many of each


class NodeDistance(IntEnum):
    """How far a node is from taking a pod, the nearest first: the holder of a resource may leave; then the node has to
    be changed, then the pod."""

    TAKEN = auto()
    CORDONED = auto()
    TAINTED = auto()
    UNHEALTHY = auto()
    TOO_SMALL = auto()
    WITHOUT = auto()
    ELSEWHERE = auto()


class Obstacle(NamedTuple):
    """Why a node cannot take a pod: `short`, as in counts of nodes; the `text` goes after the node's name. `resource`:
    the one that the node lacks entirely, if any."""

    distance: NodeDistance
    short: str
    text: str
    fix: str
    resource: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskingPod:
    """A pod that needs a node. `has_claims`: for devices by DRA, of its own; `unjudged`: what it asks of a node that
    `fit` does not judge."""

    requests: Amounts
    has_claims: bool
    affinity: NodeAffinity
    tolerations: tuple[Toleration, ...]
    unjudged: tuple[str, ...]


def asking(pod: Mapping[str, Any]) -> AskingPod:
    """Read a pod. UserError for another form than the API's."""
    spec = part_of(pod, "spec", pod)
    tolerations = objects_of(spec, "tolerations", pod)
    if len(tolerations) > _MOST_TOLERATIONS:
        raise UserError(subject_of(pod), f"has {len(tolerations)} tolerations", f"expected at most {_MOST_TOLERATIONS}")
    return AskingPod(
        requests={name: amount for name, amount in sorted(requests_of(pod).items()) if amount},
        has_claims=bool(objects_of(spec, "resourceClaims", pod)),
        affinity=affinity_of(spec, pod),
        tolerations=tuple(map(read_toleration, tolerations)),
        unjudged=tuple(_unjudged(spec, pod)),
    )


def _unjudged(spec: Mapping[str, Any], pod: Mapping[str, Any]) -> Iterator[str]:
    if any("persistentVolumeClaim" in volume for volume in objects_of(spec, "volumes", pod)):
        yield "where its volumes are"
    affinity = part_of(spec, "affinity", pod)
    yield from (key for key in ("podAffinity", "podAntiAffinity") if affinity.get(key))
    if any(
        each.get("whenUnsatisfiable") != "ScheduleAnyway" for each in objects_of(spec, "topologySpreadConstraints", pod)
    ):
        yield "topologySpreadConstraints"


def by_dra(pod: AskingPod, node: NodeState, extended: Container[str]) -> Resources:
    """Return the pod's resources that DRA serves on this node, whose device plugin has none (KEP-5004). `extended`:
    those that DeviceClasses serve by their names."""
    return tuple(
        (name, int(number))
        for name, number in pod.requests.items()
        if name in extended and not node.allocatable.get(name) and number <= MOST_DEVICES
    )


def obstacles(pod: AskingPod, node: NodeState, extended: Container[str] = ()) -> tuple[Obstacle, ...]:
    """Return all obstacles between the pod and the node, the hardest to change first, but for the `extended` resources
    that DRA serves there."""
    of_dra = dict(by_dra(pod, node, extended))
    requests = {name: amount for name, amount in pod.requests.items() if name not in of_dra}
    every = [*_of_labels(pod, node), *_of_taints(pod, node), *_of_amounts(requests, node)]
    by_plugin = [name for name in pod.requests if name in extended and node.allocatable.get(name)]
    # PreBind wants requests in the claim that it makes of such resources (patchPodExtendedResourceClaimStatus).
    if pod.has_claims and by_plugin and not of_dra:
        text = f"has {', '.join(by_plugin)} by its device plugin, where the scheduler binds no pod with claims"
        fix = "ask for all devices by DRA, or take the name from the DeviceClass (docs/beside-kubevirt.md)"
        every.append(Obstacle(NodeDistance.ELSEWHERE, "a device plugin's beside claims", text, fix))
    return tuple(sorted(every, key=lambda each: -each.distance))


def _of_labels(pod: AskingPod, node: NodeState) -> Iterator[Obstacle]:
    text = pod.affinity.unmet(node.name, node.labels)
    if text is not None:
        fix = "compare with `kubectl get nodes --show-labels`, label a node, or change spec.nodeSelector or affinity"
        yield Obstacle(NodeDistance.ELSEWHERE, "other labels than it selects", text, fix)


def _of_taints(pod: AskingPod, node: NodeState) -> Iterator[Obstacle]:
    if node.is_cordoned and keeps_away(CORDON, pod.tolerations):
        fix = f"`kubectl uncordon {node.name}`, when its work is done"
        yield Obstacle(NodeDistance.CORDONED, "cordoned", "is cordoned", fix)
    for taint in node.taints:
        if taint.key == CORDON.key or not keeps_away(taint, pod.tolerations):
            continue
        fix = f"write a toleration into the manifest, or `kubectl taint node {node.name} {taint.key}-`"
        if taint.key.startswith(OF_KUBERNETES):
            fix = f"`kubectl describe node {node.name}` says what is wrong with it"
        yield Obstacle(NodeDistance.TAINTED, f"tainted {taint.key}", f"has the taint {taint}:{taint.effect}", fix)


def _of_amounts(requests: Amounts, node: NodeState) -> Iterator[Obstacle]:
    limit = node.allocatable.get("pods")
    if limit is not None and len(node.pods) >= limit:
        text = f"has {len(node.pods)} pod{'' if len(node.pods) == 1 else 's'}, as many as it takes"
        yield Obstacle(NodeDistance.TAKEN, "too many pods", text, "stop one, or raise the kubelet's maxPods")
    for name, wanted in sorted(requests.items(), key=lambda each: not _is_device(each[0])):
        if wanted > node.free(name):
            yield _shortage(name, wanted, node)


def _shortage(name: str, wanted: Decimal, node: NodeState) -> Obstacle:
    """Return the obstacle of a node with too little of a resource, or none."""
    free, allocatable = amount_text(name, node.free(name)), node.allocatable.get(name, Decimal(0))
    needs = f"and {amount_text(name, wanted, ROUND_CEILING)} {'is' if wanted == 1 else 'are'} asked for"
    if not node.offers(name):
        return Obstacle(NodeDistance.WITHOUT, f"without {name}", f"has no {name}", _fix_of_size(name), name)
    if wanted <= allocatable:
        text = f"has {free} of {amount_text(name, allocatable)} {name} free {needs}{_holders(name, node)}"
        return Obstacle(NodeDistance.TAKEN, f"too little {name} free", text, _fix_of_taken(name))
    if _is_device(name) and wanted <= node.capacity.get(name, 0):
        healthy = f"of which {amount_text(name, allocatable)} are healthy"
        text = f"has {amount_text(name, node.capacity[name])} {name}, {healthy}, {needs}"
        fix = f"`gpu-plugin inventory` on {node.name} says what is wrong with the others"
        return Obstacle(NodeDistance.UNHEALTHY, f"unhealthy {name}", text, fix)
    text = f"has {amount_text(name, allocatable)} {name} in all {needs}"
    return Obstacle(NodeDistance.TOO_SMALL, f"too little {name}", text, _fix_of_size(name))


def _holders(resource: str, node: NodeState) -> str:
    having = sorted(
        ((pod.requests[resource], pod.name) for pod in node.pods if pod.requests.get(resource)),
        key=lambda each: (-each[0], each[1]),
    )
    holders = summary(
        (f"{name} has {amount_text(resource, amount, ROUND_CEILING)}" for amount, name in having), MOST_TOLD
    )
    return f" ({holders})" if holders else ""


def amount_text(resource: str, amount: Decimal, rounding: str = ROUND_FLOOR) -> str:
    """Write an amount: bytes in Mi, which compare at a glance, everything else unchanged."""
    if resource in _BYTES or resource.startswith(_HUGE_PAGES):
        return f"{(amount / _MEBIBYTE).to_integral_value(rounding):f}Mi"
    return f"{amount.normalize():f}"


def _is_device(resource: str) -> bool:
    return "/" in resource


def _fix_of_taken(resource: str) -> str:
    if _is_device(resource):
        return "wait until a pod that has one has ended, or stop one"
    if resource == "memory":
        return "stop what has it, or give the VM less: the pod's annotation gpu-launcher.dev/memory has the sum"
    return "stop what has it, or have the VM ask for less"


def _fix_of_size(resource: str) -> str:
    if _is_device(resource):
        return "ask for devices that one node has"
    if resource.startswith(_HUGE_PAGES):
        return "reserve some on a node (hugepages= on its kernel's command line), or leave memory.hugepages out"
    return "give the VM less, or add a larger node"
