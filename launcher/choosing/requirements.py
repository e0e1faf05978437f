"""The devices that a VM wants of a cluster, from gpu-launcher's ResourceClaims and from the VM's own."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, NamedTuple

from launcher.choosing.affinity import Toleration, read_toleration
from launcher.choosing.cel import shown_line
from launcher.choosing.claim import DEVICE_CLASS, Constraint, Rejection, Selector, claim_for, place_name, resource_in
from launcher.choosing.cluster import Cluster, PublishedID, allocated_of, alternatives_of, device_of, selectors_of
from launcher.choosing.objects import names, objects_of, part_of, subject_of
from launcher.vm.cards.annotations import Selection
from launcher.vm.cards.claims import Entry, EntryKind, Request
from pci import slices as words
from program.errors import UserError

#: The selector of our class in deploy/dra, for a cluster's objects without DeviceClasses.
_OUR_CLASS = (f'device.driver == "{words.DRIVER}"',)
#: Of a claim (AllocationResultsMaxSize, kubernetes/api resource/v1/types.go).
MOST_DEVICES = 32
_SUPPORTED = (
    "fit judges requests of devices by number (allocationMode: ExactCount), firstAvailable of one device each, and "
    "matchAttribute"
)


@dataclass(frozen=True, slots=True)
class Alternative:
    """A description of a device that a VM accepts. `selectors`: it has to match all; those of its class are first."""

    selectors: tuple[Selector, ...]
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True)
class WantedDevice:
    """A device that a VM wants. `name`: as users know it, `gpu 'gpu1'`, or request and claim. `alternatives`: what it
    may be, the preferred first; just one if the request has no `firstAvailable`. `allocated`: the device that the claim
    already has."""

    name: str
    claim: str
    alternatives: tuple[Alternative, ...]
    allocated: PublishedID | None = None


@dataclass(frozen=True, slots=True)
class Sharing:
    """Devices have to share one value of an attribute, to be on one `place`. `bound`: these devices, by the numbers of
    the wanted device and of its alternative. `source`: the annotation or constraint that says so."""

    attribute: str
    place: str
    bound: frozenset[tuple[int, int]]
    source: str

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return the numbers of the wanted devices that the sharing binds, ascending."""
        return tuple(sorted({number for number, _ in self.bound}))


@dataclass(frozen=True, slots=True)
class DeviceRequirements:
    """All devices that a VM wants, and what they have to share."""

    devices: tuple[WantedDevice, ...]
    sharings: tuple[Sharing, ...]


@dataclass(frozen=True, slots=True)
class AskedClaim:
    """A claim of a VM: the `spec` of a ResourceClaim or of a template's claims, and the object that has it, `owner`.
    `entries`: the names of the VM's entries, by request."""

    owner: Mapping[str, Any]
    spec: Mapping[str, Any]
    entries: Mapping[str, str]


class NamedClaim(NamedTuple):
    """An entry of spec.resourceClaims: a ResourceClaim, or a ResourceClaimTemplate, and its name."""

    name: str
    kind: str
    object_name: str


def claims_of(pod: Mapping[str, Any], cluster: Cluster) -> list[NamedClaim]:
    """Return the claims of a pod: for a template the claim that was made from it, if the cluster has it."""
    namespace, _ = names(pod)
    made = {
        each.get("name"): each.get("resourceClaimName")
        for each in objects_of(part_of(pod, "status", pod), "resourceClaimStatuses", pod)
    }
    claims = []
    for each in objects_of(part_of(pod, "spec", pod), "resourceClaims", pod):
        name, template = str(each.get("name")), each.get("resourceClaimTemplateName")
        its_claim = str(each.get("resourceClaimName") or made.get(name))
        is_there = template is None or (namespace, its_claim) in cluster.claims
        kind, object_name = ("ResourceClaim", its_claim) if is_there else ("ResourceClaimTemplate", str(template))
        claims.append(NamedClaim(name, kind, object_name))
    return claims


def asked_claim(claim: NamedClaim, entries: Iterable[Entry], namespace: str | None, cluster: Cluster) -> AskedClaim:
    """Return a claim that a VM names. UserError if the cluster lacks it."""
    owner = _object(claim, namespace, cluster)
    spec = part_of(owner, "spec", owner)
    requests = {
        entry.wants.name: str(entry)
        for entry in entries
        if isinstance(entry.wants, Request) and entry.wants.claim == claim.name
    }
    return AskedClaim(owner, spec if claim.kind == "ResourceClaim" else part_of(spec, "spec", owner), requests)


def extended_claim(pod: str, resources: Iterable[tuple[str, int]], cluster: Cluster) -> AskedClaim:
    """Return the claim that the scheduler makes of a pod's resources that DRA serves by their names (KEP-5004).
    `resources`: each with the number of devices."""
    requests = [
        {"name": name, "exactly": {"deviceClassName": cluster.extended[name], "count": number}}
        for name, number in resources
    ]
    owner = {"kind": "Pod", "metadata": {"name": pod}}
    return AskedClaim(owner, {"devices": {"requests": requests}}, {name: name for name, _ in resources})


class _Words:
    """The origin of each selector and constraint of a claim: the VM's annotation, if `pod --dra` writes the same for
    it; else the line of CEL."""

    def __init__(self, claim: AskedClaim, selection: Selection) -> None:
        self._owner = subject_of(claim.owner)
        entries: list[Entry] = []
        for request in objects_of(part_of(claim.spec, "devices", claim.owner), "requests", claim.owner):
            kinds = alternatives_of(request, claim.owner)
            resources = map(resource_in, selectors_of(kinds[0], claim.owner))
            kind = EntryKind.GPU if str(request.get("name")).startswith(f"{EntryKind.GPU}-") else EntryKind.HOST_DEVICE
            entries += [Entry(kind=kind, name="", wants=each) for each in resources if each is not None]
        self._selectors: dict[str, Selector] = {}
        self._constraints: tuple[Constraint, ...] = ()
        with suppress(UserError):  # of more requests than a claim has
            if (own := claim_for(entries, selection)) is not None:
                every = (each for request in own.requests for each in (*request.selectors, *request.first_available))
                self._selectors, self._constraints = {each.expression: each for each in every}, own.constraints

    def selector(self, expression: str) -> Selector:
        own = f"{shown_line(expression)} of {self._owner}"
        return self._selectors.get(expression) or Selector(expression, own, Rejection.EXCLUDED)

    def source(self, attribute: str) -> str:
        """Return where the constraint with this attribute comes from."""
        own = f"matchAttribute {attribute} of {self._owner}"
        return next((each.source for each in self._constraints if each.attribute == attribute), own)


def requirements_of(claims: Iterable[AskedClaim], selection: Selection, cluster: Cluster) -> DeviceRequirements:
    """Return the devices that all claims of a VM want together, so that no device is used twice. `selection`: what the
    VM's annotations ask for. UserError for a kind of request or constraint that fit does not judge, and for an entry
    whose request the claim lacks."""
    devices: list[WantedDevice] = []
    sharings: list[Sharing] = []
    for claim in claims:
        _read(claim, _Words(claim, selection), cluster, devices, sharings)
    return DeviceRequirements(tuple(devices), tuple(sharings))


def _read(
    claim: AskedClaim, known: _Words, cluster: Cluster, devices: list[WantedDevice], sharings: list[Sharing]
) -> None:
    """Add a claim's requests to the devices, and its constraints to the sharings."""
    owner, entries = claim.owner, claim.entries
    by_request: dict[str, list[tuple[int, int]]] = {}  # and by REQUEST/ALTERNATIVE, as constraints may say
    allocated: dict[str, list[PublishedID]] = {}
    for result in allocated_of(owner):
        allocated.setdefault(str(result.get("request")).partition("/")[0], []).append(device_of(result, owner))
    parts = part_of(claim.spec, "devices", owner)
    for request in objects_of(parts, "requests", owner):
        its_name = str(request.get("name"))
        kinds = alternatives_of(request, owner)
        alternatives = tuple(_alternative(kind, its_name, owner, cluster, known) for kind in kinds)
        its_devices = chain(allocated.get(its_name, ()), repeat(None))
        for _, device in zip(range(_count(kinds, its_name, owner)), its_devices, strict=False):
            for number, kind in enumerate(kinds):
                place = (len(devices), number)
                by_request.setdefault(its_name, []).append(place)
                if request.get("firstAvailable"):
                    by_request.setdefault(f"{its_name}/{kind.get('name')}", []).append(place)
            who = entries.get(its_name, f"request {its_name!r} of {subject_of(owner)}")
            devices.append(WantedDevice(who, subject_of(owner), alternatives, device))
    if missing := sorted(entries.keys() - by_request.keys()):
        raise UserError(
            subject_of(owner),
            f"has no request {missing[0]!r}, which {entries[missing[0]]} is of",
            f"expected one of {', '.join(sorted(by_request)) or 'its requests'}",
        )
    every = frozenset(place for its in by_request.values() for place in its)
    for constraint in objects_of(parts, "constraints", owner):
        attribute = constraint.get("matchAttribute")
        bound_requests = constraint.get("requests") or []
        if not (
            isinstance(attribute, str)
            and isinstance(bound_requests, list)
            and set(map(str, bound_requests)) <= by_request.keys()
        ):
            raise UserError(subject_of(owner), "has a constraint of another kind", _SUPPORTED)
        bound = frozenset(place for each in bound_requests for place in by_request[str(each)]) or every
        if bound:
            sharings.append(Sharing(attribute, place_name(attribute), bound, known.source(attribute)))


def _alternative(
    kind: Mapping[str, Any], request: str, owner: Mapping[str, Any], cluster: Cluster, known: _Words
) -> Alternative:
    if not kind or kind.get("allocationMode") == "All" or kind.get("adminAccess"):
        raise UserError(subject_of(owner), f"request {request!r} is of another kind", _SUPPORTED)
    selectors = (
        *_class(str(kind.get("deviceClassName")), cluster, subject_of(owner)),
        *map(known.selector, selectors_of(kind, owner)),
    )
    return Alternative(selectors, tuple(map(read_toleration, objects_of(kind, "tolerations", owner))))


def _count(kinds: Sequence[Mapping[str, Any]], request: str, owner: Mapping[str, Any]) -> int:
    """Return how many devices a request is for: one if it has several alternatives."""
    most = MOST_DEVICES if len(kinds) == 1 else 1
    counts = [kind.get("count") or 1 for kind in kinds]
    for count in counts:
        if not isinstance(count, int) or not 0 < count <= most:
            raise UserError(
                subject_of(owner), f"request {request!r} is of {count!r:.20} devices", f"expected up to {most}"
            )
    return int(counts[0])


def _class(name: str, cluster: Cluster, owner: str) -> tuple[Selector, ...]:
    expressions = cluster.classes.get(name, _OUR_CLASS if name == DEVICE_CLASS else None)
    if expressions is None:
        raise UserError(
            owner, f"is of DeviceClass {name}, which is not there", "get deviceclasses with the slices and claims"
        )
    return tuple(Selector(expression, f"DeviceClass {name}", Rejection.OTHER_CLASS) for expression in expressions)


def _object(claim: NamedClaim, namespace: str | None, cluster: Cluster) -> Mapping[str, Any]:
    """Return the object that a VM names, from the VM's namespace if known; UserError for none or for several."""
    objects = cluster.claims if claim.kind == "ResourceClaim" else cluster.templates
    named = [
        each for (where, name), each in objects.items() if name == claim.object_name and namespace in (None, where)
    ]
    if len(named) == 1:
        return named[0]
    what = f"spec.resourceClaims: {claim.kind} {claim.object_name}"
    if named:
        raise UserError(what, "is in several namespaces", "say the VM's with -n, or write its metadata.namespace")
    raise UserError(what, "is not among the slices and claims", f"get {claim.kind.lower()}s -A with them")
