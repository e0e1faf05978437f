"""Reads from a ResourceClaim which devices of this node the scheduler chose, and checks them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pci.slices import DRIVER
from program.errors import Refusal

#: The pod's name for a claim that was made from a template (resourceclaim.PodResourceClaimAnnotation).
_POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
#: On a claim that the scheduler made for a container's `nvidia.com/...: 1` (KEP-5004).
_OF_A_RESOURCE = "resource.kubernetes.io/extended-resource-claim"

#: The conditions of a device's status in a claim: the device is as its pod needs it, or cannot be (plugin.dra.status).
READY, FAILED = "Ready", f"{DRIVER}/Failed"

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_UID = re.compile(r"[0-9A-Za-z][-0-9A-Za-z]{0,63}")

_MAKE_ANOTHER = "delete the pod, to have its claim allocated anew"


@dataclass(frozen=True, slots=True)
class Reference:
    """A claim as the kubelet names it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Result:
    """One device for one request of the claim, by its name in the slices."""

    request: str
    device: str


@dataclass(frozen=True, slots=True)
class DriverClaim:
    """A claim, and the devices of this node that it was given.

    `pod_claim` is the pod's name for a claim that was made from a template; None for any other claim.
    `of_a_resource`: the scheduler made the claim for containers that request an extended resource.
    """

    reference: Reference
    pod_claim: str | None
    of_a_resource: bool
    results: tuple[Result, ...]


def check(reference: Reference) -> None:
    """Raise Refusal if the kubelet's names for a claim cannot be parts of a file's name."""
    is_name = _LABEL.fullmatch(reference.namespace) and _SUBDOMAIN.fullmatch(reference.name)
    if not (is_name and _UID.fullmatch(reference.uid)):
        raise Refusal(
            f"claim {str(reference)[:300]!r} with uid {reference.uid[:80]!r}",
            "is no claim's namespace, name and uid",
            "expected names of Kubernetes' objects",
        )


def ours(claim: Mapping[str, Any], node: str) -> list[Mapping[str, Any]]:
    """Return the results of the API server's claim that are this node's devices; empty if it is not allocated here."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    return _of_node(results, node)


def _of_node(devices: Iterable[Mapping[str, Any]], node: str) -> list[Mapping[str, Any]]:
    return [each for each in devices if (each.get("driver"), each.get("pool")) == (DRIVER, node)]


def has_conditions(claim: Mapping[str, Any], node: str) -> bool:
    """Whether the scheduler waits, or has waited, for conditions of this node's devices."""
    return any(each.get("bindingConditions") for each in ours(claim, node))


def awaits(claim: Mapping[str, Any], node: str) -> bool:
    """Whether the scheduler waits for a device of this node: one with conditions, and neither READY nor FAILED."""
    decided = {
        each.get("device")
        for each in _of_node((claim.get("status") or {}).get("devices") or (), node)
        if any(one["type"] in (READY, FAILED) and one["status"] == "True" for one in each.get("conditions") or ())
    }
    return any(each.get("bindingConditions") and each["device"] not in decided for each in ours(claim, node))


def read_claim(reference: Reference, claim: Mapping[str, Any], node: str) -> DriverClaim:
    """Read the API server's object of a claim; Refusal if it does not allocate this node's devices to the kubelet's
    claim."""
    subject = f"claim {reference}"
    metadata, status = claim.get("metadata") or {}, claim.get("status") or {}
    if (uid := metadata.get("uid")) != reference.uid:
        raise Refusal(subject, f"has the uid {uid}, and the pod's has {reference.uid}", _MAKE_ANOTHER)
    allocation = status.get("allocation")
    if not allocation:
        raise Refusal(subject, "is not allocated", "wait for the scheduler, or delete the pod")
    devices = allocation.get("devices") or {}
    ours = [each for each in devices.get("results") or () if each.get("driver") == DRIVER]
    for result in ours:
        what = f"{result.get('device')} of {subject}"
        if result.get("adminAccess"):
            wrong = "is allocated with admin access, beside whoever has it"
            raise Refusal(what, wrong, "claim it without: a guest has a card to itself")
        if result.get("pool") != node:
            raise Refusal(what, f"is of the pool {result.get('pool')}, and this node is {node}", _MAKE_ANOTHER)
    for config in devices.get("config") or ():
        if (config.get("opaque") or {}).get("driver") == DRIVER:
            raise Refusal(
                subject, f"has a config for {DRIVER}, which takes none", "take it out of the claim or its class"
            )
    annotations = metadata.get("annotations") or {}
    pod_claim = annotations.get(_POD_CLAIM_NAME)
    if pod_claim is not None and not _LABEL.fullmatch(pod_claim):
        raise Refusal(
            subject, f"has the annotation {_POD_CLAIM_NAME}: {pod_claim[:80]!r}", "expected a name like 'gpu', or none"
        )
    # A request of alternatives is called REQUEST/ALTERNATIVE here, and REQUEST by containers.
    results = tuple(Result(str(each["request"]).partition("/")[0], str(each["device"])) for each in ours)
    for result in results:
        if not (_LABEL.fullmatch(result.request) and _LABEL.fullmatch(result.device)):
            what = f"allocates {result.device[:80]!r} for {result.request[:80]!r}"
            raise Refusal(subject, what, "expected names of a device and of a request, as the API server admits them")
    names = [result.device for result in results]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise Refusal(f"{', '.join(twice)} of {subject}", "is allocated twice in one claim", _MAKE_ANOTHER)
    return DriverClaim(reference, pod_claim, annotations.get(_OF_A_RESOURCE) == "true", results)
