"""Limits of a namespace: its ResourceQuotas, and the ConfigMap of deploy/tenants."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from launcher.choosing.claim import DEVICE_CLASS, resource_in
from launcher.choosing.cluster import alternatives_of, selectors_of
from launcher.choosing.nodes import Amounts, amounts_of
from launcher.choosing.objects import mapping_of, names, objects_of, part_of, subject_of
from launcher.choosing.obstacles import amount_text
from launcher.choosing.requirements import AskedClaim
from pci.resource import NODE_DEVICES
from program.errors import UserError

#: The ConfigMap of deploy/tenants, and its key for namespaces without one of their own.
CONFIG_MAP, OTHERS = "gpu-namespaces", "_others"
#: How a quota calls what is requested of a resource, and the devices of a DeviceClass (
#: kubernetes/pkg/quota/v1/evaluator/core/resource_claims.go).
_REQUESTED = "requests."
_OF_CLASS = ".deviceclass.resource.k8s.io/devices"
#: Resources that the policy lets every pod have.
_OF_EVERYBODY = (f"{NODE_DEVICES}/", "devices.kubevirt.io/")
_FIX_OF_DEVICES = "ask for what it may have, or ask whoever runs the cluster: docs/tenants.md"
_FIX_OF_QUOTA = "stop what uses it, or have the quota raised: `kubectl describe quota`"


class ResourceQuota(NamedTuple):
    """A ResourceQuota: the limit of each resource, and how much of it is used."""

    name: str
    hard: Amounts
    used: Amounts


@dataclass(frozen=True, slots=True)
class NamespaceLimits:
    """`quotas` by namespace; `devices`: the names that each namespace may have, None without the ConfigMap."""

    quotas: Mapping[str, tuple[ResourceQuota, ...]] = field(default_factory=dict)
    devices: Mapping[str, tuple[str, ...]] | None = None

    def refusal(self, namespace: str, amounts: Amounts, claims: Iterable[AskedClaim]) -> tuple[str, str] | None:
        """Return why the API server would refuse a new pod with these requests, or these new claims, and what to do;
        None if it would not."""
        requests = [request for claim in claims for request in _requests(claim)]
        if self.devices is not None:
            allowed = self.devices.get(namespace, self.devices.get(OTHERS, ()))
            for its in (*_of_pod(amounts), *(names for request in requests for names in request.names)):
                if not any(_allows(each, name) for name in its for each in allowed):
                    what = its[-1] if "/" in its[-1] else f"DeviceClass {its[-1]}"
                    may = f"it may have {', '.join(allowed)}" if allowed else "it may have no devices"
                    return f"namespace {namespace} may not have {what}: {may}", _FIX_OF_DEVICES
        wanted = {f"{_REQUESTED}{name}": amount for name, amount in amounts.items()}
        for request in requests:
            name = f"{request.names[0][0]}{_OF_CLASS}"
            wanted[name] = wanted.get(name, Decimal(0)) + request.devices
        for quota in self.quotas.get(namespace, ()):
            for name, amount in wanted.items():
                # A quota's `cpu` is what is requested, too.
                key = name if name in quota.hard else name.removeprefix(_REQUESTED)
                hard, used = quota.hard.get(key), quota.used.get(key, Decimal(0))
                if hard is not None and used + amount > hard:
                    of = name.removeprefix(_REQUESTED)
                    most, has, more = (amount_text(of, each) for each in (hard, used, amount))
                    its_quota = (
                        f"its quota {quota.name} is {most} {of}, of which {has} is used, and {more} is asked for"
                    )
                    return f"namespace {namespace} may not have more: {its_quota}", _FIX_OF_QUOTA
        return None


def limits_of(objects: Iterable[Mapping[str, Any]]) -> NamespaceLimits:
    """Read ResourceQuotas and the ConfigMap among these objects; UserError for another form than the API's.

    A quota with scopes is left out: it counts only some pods.
    """
    quotas: dict[str, list[ResourceQuota]] = {}
    devices: dict[str, tuple[str, ...]] | None = None
    for each in objects:
        if each.get("kind") == "ResourceQuota":
            spec, status = mapping_of(each, "spec", each), part_of(each, "status", each)
            if not spec.get("scopes") and not spec.get("scopeSelector"):
                namespace, name = names(each)
                quota = ResourceQuota(name, amounts_of(spec, "hard", each), amounts_of(status, "used", each))
                quotas.setdefault(namespace, []).append(quota)
        elif each.get("kind") == "ConfigMap" and names(each)[1] == CONFIG_MAP:
            devices = {name: _lines(text, each) for name, text in part_of(each, "data", each).items()}
    return NamespaceLimits({namespace: tuple(its) for namespace, its in quotas.items()}, devices)


def _lines(text: object, owner: Mapping[str, Any]) -> tuple[str, ...]:
    if not isinstance(text, str):
        raise UserError(subject_of(owner), "data has a value that is no text", "quote it")
    lines = (line.strip() for line in text.split("\n"))
    return tuple(line for line in lines if line and not line.startswith("#"))


class _Request(NamedTuple):
    """A request of a claim. `names`: for each of its alternatives, names of which the namespace needs at least one.
    `devices`: how many devices it asks for."""

    names: tuple[tuple[str, ...], ...]
    devices: int


def _requests(claim: AskedClaim) -> Iterator[_Request]:
    for request in objects_of(part_of(claim.spec, "devices", claim.owner), "requests", claim.owner):
        alternatives = alternatives_of(request, claim.owner)
        count = alternatives[0].get("count")
        yield _Request(tuple(_names(each, claim) for each in alternatives), count if isinstance(count, int) else 1)


def _of_pod(requests: Amounts) -> Iterator[tuple[str, ...]]:
    return ((name,) for name in requests if "/" in name and not name.startswith(_OF_EVERYBODY))


def _names(request: Mapping[str, Any], claim: AskedClaim) -> tuple[str, ...]:
    """Return the names for a request's device: its class and, for our class, the resources in its selectors."""
    device_class = str(request.get("deviceClassName"))
    selectors = selectors_of(request, claim.owner) if device_class == DEVICE_CLASS else ()
    return device_class, *filter(None, map(resource_in, selectors))


def _allows(allowed: str, name: str) -> bool:
    return name.startswith(allowed[:-1]) if allowed.endswith("*") else name == allowed
