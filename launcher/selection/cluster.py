"""What a cluster's objects say of its devices: who has published which, who has which, and what classes there are.

The objects are those of resource.k8s.io/v1, as `kubectl get resourceslices,resourceclaims,deviceclasses -A -o json`
prints them. What is of another form than the API's is a UserError that names the object.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pci.slices import value_of
from program.errors import UserError

_GROUP = "resource.k8s.io"
_VERSIONS = (f"{_GROUP}/v1", f"{_GROUP}/v1beta2")  # of one form, as far as it is read
_EXPECTED = "expected it as the API server has it (resource.k8s.io/v1)"


class PublishedID(NamedTuple):
    """A device's name, unique in its driver's pool."""

    driver: str
    pool: str
    name: str


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}" if self.value else self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedDevice:
    """A device that a driver has published. `attributes` and `capacity` are by domain and name, as CEL has them.

    `cannot` says why nobody gets it, where the node itself has said more than a taint could.
    """

    id: PublishedID
    attributes: Mapping[str, Mapping[str, Any]]
    capacity: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    cannot: str | None = None

    def attribute(self, name: str) -> Any:
        """Return the value of an attribute by its name, the driver's own without a domain; None if it has none."""
        domain, _, own = name.rpartition("/")
        value = self.attributes.get(domain or self.id.driver, {}).get(own)
        return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class Node:
    """A node and the devices that its pods can have, in the order in which the scheduler takes them. `broken` are pools
    of which not every slice is there, in words: the scheduler waits for the rest."""

    name: str
    devices: tuple[PublishedDevice, ...]
    broken: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a device: a ResourceClaim, and the pods that it is reserved for; or a pod alone, of a device plugin's."""

    claim: str | None
    pods: tuple[str, ...]

    def __str__(self) -> str:
        pods = f"pod {', '.join(self.pods)}" if self.pods else "no pod now"
        return f"claim {self.claim} of {pods}" if self.claim is not None else pods


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What is known of a cluster's devices. `classes`: the selectors of each DeviceClass; `claims` and `templates`: the
    objects by namespace and name. `others`: slices that are for nodes by labels, which are not known here."""

    nodes: tuple[Node, ...]
    taken: Mapping[PublishedID, Holder]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    claims: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    templates: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    others: int = 0


def cluster_of(objects: Iterable[Mapping[str, Any]]) -> Cluster:
    """Return what these objects say; those of other kinds are passed over. UserError for what is none of the API's."""
    by_kind: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for each in objects:
        version, kind = each.get("apiVersion"), each.get("kind")
        if isinstance(version, str) and version.startswith(f"{_GROUP}/"):
            if version not in _VERSIONS:
                raise UserError(called(each), f"is of {version}", f"expected {_VERSIONS[0]}: Kubernetes 1.34 or newer")
            by_kind[str(kind)].append(each)
    claims = {_names(each): each for each in by_kind["ResourceClaim"]}
    nodes, others = _nodes(by_kind["ResourceSlice"])
    return Cluster(
        nodes=nodes,
        taken=dict(_taken(claims.values())),
        classes={_names(each)[1]: selectors_of(_mapping(each, "spec", each), each) for each in by_kind["DeviceClass"]},
        claims=claims,
        templates={_names(each): each for each in by_kind["ResourceClaimTemplate"]},
        others=others,
    )


def selectors_of(part: Mapping[str, Any], owner: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the CEL expressions of a DeviceClass's spec, or of a request; `owner` is the object that has it."""
    expressions = []
    for selector in objects_of(part, "selectors", owner):
        match selector:
            case {"cel": {"expression": str(expression)}}:
                expressions.append(expression)
            case _:
                raise UserError(called(owner), "has a selector without cel.expression", _EXPECTED)
    return tuple(expressions)


class _Slice(NamedTuple):
    node: str | None  # None: of all nodes
    generation: int
    wanted: int  # slices of the pool
    owner: Mapping[str, Any]
    spec: Mapping[str, Any]


def _nodes(slices: Iterable[Mapping[str, Any]]) -> tuple[tuple[Node, ...], int]:
    """Return the nodes by name, and how many slices are for nodes by their labels, or device by device."""
    pools: dict[tuple[str, str], list[_Slice]] = defaultdict(list)
    others = 0
    for each in slices:
        spec = _mapping(each, "spec", each)
        pool = _mapping(spec, "pool", each)
        match spec, pool:
            case {"driver": str(driver)}, {
                "name": str(name),
                "generation": int(generation),
                "resourceSliceCount": int(n),
            }:
                node = spec.get("nodeName")
                if not isinstance(node, str) and spec.get("allNodes") is not True:
                    others += 1
                    continue
                node = node if isinstance(node, str) else None
                pools[driver, name].append(_Slice(node, generation, n, each, spec))
            case _:
                raise UserError(called(each), "has no driver, or no whole pool", _EXPECTED)
    devices: dict[str | None, list[PublishedDevice]] = defaultdict(list)
    broken: dict[str | None, list[str]] = defaultdict(list)
    for (driver, name), its in sorted(pools.items()):
        newest = max(each.generation for each in its)
        current = sorted((each for each in its if each.generation == newest), key=lambda each: _names(each.owner))
        node = current[0].node
        devices[node]  # it is there, whatever it has
        if len(current) != current[0].wanted:
            count = f"{len(current)} of {current[0].wanted} slices of generation {newest} are there"
            broken[node].append(f"{driver} is publishing pool {name}: {count}")
            continue
        for part in current:
            devices[node] += (
                _device(device, driver, name, part) for device in objects_of(part.spec, "devices", part.owner)
            )
    shared, shared_broken = tuple(devices.pop(None, ())), tuple(broken.pop(None, ()))
    nodes = (
        Node(str(node), (*devices[node], *shared), (*broken[node], *shared_broken)) for node in sorted(devices, key=str)
    )
    return tuple(nodes), others


def _device(device: Mapping[str, Any], driver: str, pool: str, of: _Slice) -> PublishedDevice:
    name = device.get("name")
    if not isinstance(name, str):
        raise UserError(called(of.owner), "has a device without a name", _EXPECTED)
    taints = device.get("taints")
    return PublishedDevice(
        id=PublishedID(driver, pool, name),
        attributes=_by_domain(device, "attributes", driver, of),
        capacity=_by_domain(device, "capacity", driver, of),
        taints=tuple(_taint(each, of) for each in objects_of(device, "taints", of.owner)) if taints else (),
    )


def _by_domain(device: Mapping[str, Any], key: str, driver: str, of: _Slice) -> dict[str, dict[str, Any]]:
    by_domain: dict[str, dict[str, Any]] = {driver: {}}
    for name, value in part_of(device, key, of.owner).items():
        domain, _, own = name.rpartition("/")
        if not isinstance(value, dict) or not value or not _is_value(value_of(value)):
            raise UserError(called(of.owner), f"{device['name']}.{key}.{name} has no value", _EXPECTED)
        by_domain.setdefault(domain or driver, {})[own] = value_of(value)
    return by_domain


def _is_value(value: Any) -> bool:
    """Return whether an attribute may be that: a text, a bool, a number of 64 bits, or a list of these."""
    if isinstance(value, list):
        return all(not isinstance(each, list) and _is_value(each) for each in value)
    return isinstance(value, str) or (isinstance(value, int) and -(2**63) <= value < 2**63)


def _taint(taint: Mapping[str, Any], of: _Slice) -> Taint:
    match taint:
        case {"key": str(key), "effect": str(effect)}:
            return Taint(key, str(taint.get("value") or ""), effect)
        case _:
            raise UserError(called(of.owner), "has a taint without key or effect", _EXPECTED)


def _taken(claims: Iterable[Mapping[str, Any]]) -> Iterator[tuple[PublishedID, Holder]]:
    """Yield each device that is allocated. One that an admin looks at (adminAccess) is not taken by that."""
    for claim in claims:
        reserved = objects_of(part_of(claim, "status", claim), "reservedFor", claim)
        pods = tuple(str(each.get("name")) for each in reserved if each.get("resource") == "pods")
        for result in allocated_of(claim):
            if result.get("adminAccess") is not True:
                yield device_of(result, claim), Holder("/".join(_names(claim)), pods)


def allocated_of(claim: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the results of a claim's allocation, none for one that is not allocated."""
    allocation = part_of(part_of(claim, "status", claim), "allocation", claim)
    return objects_of(part_of(allocation, "devices", claim), "results", claim)


def device_of(result: Mapping[str, Any], claim: Mapping[str, Any]) -> PublishedID:
    match result:
        case {"driver": str(driver), "pool": str(pool), "device": str(device)}:
            return PublishedID(driver, pool, device)
        case _:
            raise UserError(called(claim), "has an allocation without driver, pool or device", _EXPECTED)


def called(owner: Mapping[str, Any]) -> str:
    """Return what an object is called in an error: `ResourceSlice node-1-gpu`."""
    namespace, name = _names(owner)
    return f"{owner.get('kind')} {f'{namespace}/' if namespace else ''}{name}"


def _names(each: Mapping[str, Any]) -> tuple[str, str]:
    """Return namespace and name; the first is empty for what has none."""
    match each.get("metadata"):
        case {"name": str(name), "namespace": str(namespace)}:
            return namespace, name
        case {"name": str(name)}:
            return "", name
        case _:
            raise UserError(str(each.get("kind")), "has no metadata.name", _EXPECTED)


def _mapping(part: Mapping[str, Any], key: str, owner: Mapping[str, Any]) -> Mapping[str, Any]:
    value = part.get(key)
    if not isinstance(value, dict):
        raise UserError(called(owner), f"has no {key}", _EXPECTED)
    return value


def part_of(part: Mapping[str, Any], key: str, owner: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a mapping of an object, empty where it is not there; UserError for anything else."""
    value = part.get(key)
    if value is not None and not isinstance(value, dict):
        raise UserError(called(owner), f"{key} is no mapping", _EXPECTED)
    return value or {}


def objects_of(part: Mapping[str, Any], key: str, owner: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a list of mappings of an object, empty where it is not there; UserError for anything else."""
    values = part.get(key) or []
    if not (isinstance(values, list) and all(isinstance(each, dict) for each in values)):
        raise UserError(called(owner), f"{key} is no list of objects", _EXPECTED)
    return values
