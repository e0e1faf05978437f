"""A cluster's nodes, and its devices by DRA with their holders and their classes, from its objects.

The objects are those of `kubectl get nodes,pods -A -o json`, and of resource.k8s.io/v1, as `kubectl get
resourceslices,resourceclaims,deviceclasses,devicetaintrules -A -o json` prints them. An object of another form is a
UserError that names it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, NamedTuple, TypeVar

from launcher.choosing.affinity import Taint, TaintRule, read_rule, read_taint
from launcher.choosing.nodes import Amounts, NodeState, amount_of, nodes_of
from launcher.choosing.objects import EXPECTED, mapping_of, names, objects_of, part_of, subject_of
from launcher.fields.quantity import written
from pci import slices as words
from pci.cordons import CONFIG_MAP, Cordon, read_cordons
from program.errors import Nonsense, UserError

T = TypeVar("T")

_GROUP = "resource.k8s.io"
_VERSIONS = (f"{_GROUP}/v1", f"{_GROUP}/v1beta2")  # of one form, as far as it is read
_RULE = "DeviceTaintRule"
_LIMITS = ("ResourceQuota", "ConfigMap")
_VERSIONS_OF_RULES = (*_VERSIONS, f"{_GROUP}/v1alpha3")
#: What the resource's name begins with that each DeviceClass has even without `extendedResourceName`.
_IMPLICIT = "deviceclass.resource.kubernetes.io/"


class PublishedID(NamedTuple):
    """A device's name, unique in its driver's pool."""

    driver: str
    pool: str
    name: str


class Counter(NamedTuple):
    """A counter of a driver's pool that several devices consume: the places on a card (KEP-4815)."""

    driver: str
    pool: str
    set: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedDevice:
    """A device that a driver has published. `attributes` and `capacity` are by domain and name, as in CEL; a capacity
    is an exact amount. `consumes`: how much the device takes from counters when it is allocated.

    `cannot`: why no VM gets the device, if the node's inventory says so.
    """

    id: PublishedID
    attributes: Mapping[str, Mapping[str, Any]]
    capacity: Mapping[str, Amounts] = field(default_factory=dict)
    consumes: Mapping[Counter, Decimal] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    cannot: str | None = None

    def attribute(self, name: str) -> Any:
        """Return an attribute's value, by a name without a domain for the driver's own; None if there is none."""
        domain, _, own = name.rpartition("/")
        value = self.attributes.get(domain or self.id.driver, {}).get(own)
        return tuple(value) if isinstance(value, list) else value

    def values(self, name: str) -> frozenset[tuple[type, Any]]:
        """Return an attribute's values with their types, one or those of a list (KEP-5491); none if there is none."""
        value = self.attribute(name)
        return frozenset(
            (type(each), each) for each in (value if isinstance(value, tuple) else (value,)) if each is not None
        )

    @property
    def product(self) -> str | None:
        """Return the model as people know it: NVML's name of it, or the words by which it is sold."""
        names = (self.attribute(words.NVML_NAME), self.attribute(words.PRODUCT))
        return next((str(name) for name in names if name is not None), None)

    def amount(self, name: str) -> str | None:
        """Return a capacity of the driver's own as a quantity; None if there is none."""
        exact = self.capacity.get(self.id.driver, {}).get(name)
        return None if exact is None else written(int(exact))


@dataclass(frozen=True, slots=True)
class Node:
    """A node and the devices that its pods can have, in the scheduler's order. `broken`: what is wrong with pools that
    lack slices; the scheduler waits for these."""

    name: str
    devices: tuple[PublishedDevice, ...]
    broken: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a device: a ResourceClaim, and the pods that it is reserved for; or a pod alone, by a device plugin."""

    claim: str | None
    pods: tuple[str, ...]

    def __str__(self) -> str:
        pods = f"pod {', '.join(self.pods)}" if self.pods else "no pod now"
        return f"claim {self.claim} of {pods}" if self.claim is not None else pods


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster's devices. `classes`: the selectors of each DeviceClass. `extended`: the DeviceClass of each resource
    that DRA serves by its name. `claims` and `templates`: the objects by namespace and name. `others`: the number of
    slices for nodes by label, which are not read. `counters`: the whole amount of each; `left`: the amount that
    allocated devices leave. `states`: the nodes by name, if Nodes were given. `waiting`: the pods without a node, as
    NAMESPACE/NAME. `cordons`: the cards that are out of service, by node and PCI address. `limits`: the objects that
    may limit namespaces."""

    nodes: tuple[Node, ...]
    taken: Mapping[PublishedID, Holder]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    extended: Mapping[str, str] = field(default_factory=dict)
    claims: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    templates: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    others: int = 0
    counters: Mapping[Counter, Decimal] = field(default_factory=dict)
    left: Mapping[Counter, Decimal] = field(default_factory=dict)
    states: Mapping[str, NodeState] = field(default_factory=dict)
    waiting: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    cordons: Mapping[str, Mapping[str, Cordon]] = field(default_factory=dict)
    limits: tuple[Mapping[str, Any], ...] = ()

    @property
    def publishes(self) -> bool:
        """Return whether any node has devices by DRA."""
        return any(node.devices or node.broken for node in self.nodes) or self.others > 0

    def has_room(self, *devices: PublishedDevice) -> bool:
        """Return whether the counters have enough left for those of these devices that are not allocated yet, all
        together."""
        new = [device for device in devices if device.id not in self.taken]
        return all(
            sum(device.consumes.get(counter, 0) for device in new) <= self.left.get(counter, 0)
            for counter in {counter for device in new for counter in device.consumes}
        )

    @property
    def idle(self) -> "Cluster":
        """Return the cluster as it would be without allocated devices."""
        return replace(self, taken={}, left=self.counters)

    @property
    def gaps(self) -> tuple[str, ...]:
        """Return a sentence for each part of the cluster that the objects may lack."""
        sentences = []
        if self.others:
            sentences.append(f"{self.others} ResourceSlices are for nodes by label, and were not looked at")
        if self.states and not any(state.pods for state in self.states.values()):
            sentences.append("no node has a pod here, so all of it counts as free: get nodes,pods -A")
        return tuple(sentences)


def cluster_of(objects: Iterable[Mapping[str, Any]]) -> Cluster:
    """Read nodes and devices from these objects; ignore other kinds. UserError for another form than the API's."""
    objects = list(objects)
    states, waiting = nodes_of(objects)
    by_kind: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for each in objects:
        version, kind = each.get("apiVersion"), each.get("kind")
        if isinstance(version, str) and version.startswith(f"{_GROUP}/"):
            if version not in (_VERSIONS_OF_RULES if kind == _RULE else _VERSIONS):
                raise UserError(
                    subject_of(each), f"is of {version}", f"expected {_VERSIONS[0]}: Kubernetes 1.34 or newer"
                )
            by_kind[str(kind)].append(each)
    claims = {names(each): each for each in by_kind["ResourceClaim"]}
    counters: dict[Counter, Decimal] = {}
    nodes, others = _nodes(by_kind["ResourceSlice"], states, tuple(map(read_rule, by_kind[_RULE])), counters)
    taken, left = dict(_taken(claims.values())), dict(counters)
    for device in {device.id: device for node in nodes for device in node.devices if device.id in taken}.values():
        for counter, amount in device.consumes.items():
            left[counter] = left.get(counter, Decimal(0)) - amount
    return Cluster(
        nodes=nodes,
        taken=taken,
        classes={names(each)[1]: selectors_of(mapping_of(each, "spec", each), each) for each in by_kind["DeviceClass"]},
        extended=_extended(by_kind["DeviceClass"]),
        claims=claims,
        templates={names(each): each for each in by_kind["ResourceClaimTemplate"]},
        others=others,
        counters=counters,
        left=left,
        states=states,
        waiting=waiting,
        cordons=_cordons(objects),
        limits=tuple(each for each in objects if each.get("kind") in _LIMITS),
    )


def _extended(classes: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the DeviceClass of each resource that DRA serves by its name: of several classes with one the newest, then
    the first by name (k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache)."""
    by_name = sorted(classes, key=lambda each: names(each)[1], reverse=True)
    extended = {f"{_IMPLICIT}{names(each)[1]}": names(each)[1] for each in by_name}
    for each in sorted(by_name, key=lambda each: str(each["metadata"].get("creationTimestamp"))):
        if isinstance(resource := mapping_of(each, "spec", each).get("extendedResourceName"), str):
            extended[resource] = names(each)[1]
    return extended


def _cordons(objects: Iterable[Mapping[str, Any]]) -> Mapping[str, Mapping[str, Cordon]]:
    by_node: dict[str, dict[str, Cordon]] = defaultdict(dict)
    for each in objects:
        if each.get("kind") == "ConfigMap" and names(each)[1] == CONFIG_MAP:
            data = {key: str(text) for key, text in part_of(each, "data", each).items()}
            for (node, address), cordon in read_cordons(data).items():
                by_node[node][str(address)] = cordon
            break
    return by_node


def alternatives_of(request: Mapping[str, Any], owner: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the descriptions of a device that a claim's request accepts, one at least; `owner` is the claim."""
    return objects_of(request, "firstAvailable", owner) or [part_of(request, "exactly", owner)]


def selectors_of(part: Mapping[str, Any], owner: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the CEL expressions of a DeviceClass's spec, or of a request; `owner` is the object that has it."""
    expressions = []
    for selector in objects_of(part, "selectors", owner):
        match selector:
            case {"cel": {"expression": str(expression)}}:
                expressions.append(expression)
            case _:
                raise UserError(subject_of(owner), "has a selector without cel.expression", EXPECTED)
    return tuple(expressions)


class _Slice(NamedTuple):
    node: str | None  # None: of all nodes
    generation: int
    wanted: int  # slices of the pool
    owner: Mapping[str, Any]
    spec: Mapping[str, Any]


def _nodes(
    slices: Iterable[Mapping[str, Any]],
    known: Iterable[str],
    rules: tuple[TaintRule, ...],
    counters: dict[Counter, Decimal],
) -> tuple[tuple[Node, ...], int]:
    """Return the nodes by name, the `known` ones too; and the number of slices that select nodes by label, or for each
    device. Add the counters of complete pools to `counters`."""
    pools: dict[tuple[str, str], list[_Slice]] = defaultdict(list)
    others = 0
    for each in slices:
        spec = mapping_of(each, "spec", each)
        pool = mapping_of(spec, "pool", each)
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
                raise UserError(subject_of(each), "has no driver, or no whole pool", EXPECTED)
    devices: dict[str | None, list[PublishedDevice]] = defaultdict(list, {name: [] for name in known})
    broken: dict[str | None, list[str]] = defaultdict(list)
    for (driver, name), its in sorted(pools.items()):
        newest = max(each.generation for each in its)
        current = sorted((each for each in its if each.generation == newest), key=lambda each: names(each.owner))
        node = current[0].node
        devices[node]  # it is there, whatever it has
        if len(current) != current[0].wanted:
            count = f"{len(current)} of {current[0].wanted} slices of generation {newest} are there"
            broken[node].append(f"{driver} is publishing pool {name}: {count}")
            continue
        its_rules = [rule for rule in rules if rule.driver in (None, driver) and rule.pool in (None, name)]
        for part in current:
            for counter_set in objects_of(part.spec, "sharedCounters", part.owner):
                counters.update(_counters(counter_set, "name", driver, name, part.owner))
            devices[node] += (
                _device(device, driver, name, part, its_rules)
                for device in objects_of(part.spec, "devices", part.owner)
            )
    shared, shared_broken = tuple(devices.pop(None, ())), tuple(broken.pop(None, ()))
    nodes = (
        Node(str(node), (*devices[node], *shared), (*broken[node], *shared_broken)) for node in sorted(devices, key=str)
    )
    return tuple(nodes), others


def _device(
    device: Mapping[str, Any], driver: str, pool: str, of: _Slice, rules: Iterable[TaintRule]
) -> PublishedDevice:
    name = device.get("name")
    if not isinstance(name, str):
        raise UserError(subject_of(of.owner), "has a device without a name", EXPECTED)
    own = (read_taint(each, of.owner) for each in objects_of(device, "taints", of.owner))
    return PublishedDevice(
        id=PublishedID(driver, pool, name),
        attributes=_attributes(device, driver, of),
        capacity=_capacity(device, driver, of),
        consumes={
            counter: amount
            for each in objects_of(device, "consumesCounters", of.owner)
            for counter, amount in _counters(each, "counterSet", driver, pool, of.owner)
        },
        taints=(*own, *(rule.taint for rule in rules if rule.device in (None, name))),
    )


def _counters(
    part: Mapping[str, Any], key: str, driver: str, pool: str, owner: Mapping[str, Any]
) -> Iterator[tuple[Counter, Decimal]]:
    """Yield the counters of a set, whose name is at this key."""
    for name, value in part_of(part, "counters", owner).items():
        try:
            amount = amount_of(value.get("value") if isinstance(value, dict) else None)
        except Nonsense as error:
            raise UserError(subject_of(owner), f"the counter {name}: {error.wrong}", EXPECTED) from error
        yield Counter(driver, pool, str(part.get(key)), name), amount


def _attributes(device: Mapping[str, Any], driver: str, of: _Slice) -> dict[str, dict[str, Any]]:
    values = {}
    for name, attribute in part_of(device, "attributes", of.owner).items():
        value = next(iter(attribute.values()), None) if isinstance(attribute, dict) else None
        if not _is_value(value):
            raise UserError(subject_of(of.owner), f"{device['name']}.attributes.{name} has no value", EXPECTED)
        values[name] = value
    return by_domain(values, driver)


def _capacity(device: Mapping[str, Any], driver: str, of: _Slice) -> dict[str, dict[str, Decimal]]:
    values = {}
    for name, value in part_of(device, "capacity", of.owner).items():
        try:
            values[name] = amount_of(value.get("value") if isinstance(value, dict) else None)
        except Nonsense as error:
            raise UserError(
                subject_of(of.owner), f"{device['name']}.capacity.{name}: {error.wrong}", EXPECTED
            ) from error
    return by_domain(values, driver)


def by_domain(values: Mapping[str, T], driver: str) -> dict[str, dict[str, T]]:
    """Return a device's attributes or capacity by domain and name, as in CEL; the driver's domain is always there."""
    domains: dict[str, dict[str, T]] = {driver: {}}
    for name, value in values.items():
        domain, _, own = name.rpartition("/")
        domains.setdefault(domain or driver, {})[own] = value
    return domains


def _is_value(value: Any) -> bool:
    """Return whether an attribute may have this value: a text, a bool, a 64-bit number, or a list of these."""
    if isinstance(value, list):
        return all(not isinstance(each, list) and _is_value(each) for each in value)
    return isinstance(value, str) or (isinstance(value, int) and -(2**63) <= value < 2**63)


def _taken(claims: Iterable[Mapping[str, Any]]) -> Iterator[tuple[PublishedID, Holder]]:
    """Yield each allocated device with its holder. An admin's request (adminAccess) does not take a device."""
    for claim in claims:
        reserved = objects_of(part_of(claim, "status", claim), "reservedFor", claim)
        pods = tuple(str(each.get("name")) for each in reserved if each.get("resource") == "pods")
        for result in allocated_of(claim):
            if result.get("adminAccess") is not True:
                yield device_of(result, claim), Holder("/".join(names(claim)), pods)


def allocated_of(claim: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the results of a claim's allocation; [] if it is not allocated."""
    allocation = part_of(part_of(claim, "status", claim), "allocation", claim)
    return objects_of(part_of(allocation, "devices", claim), "results", claim)


def device_of(result: Mapping[str, Any], claim: Mapping[str, Any]) -> PublishedID:
    match result:
        case {"driver": str(driver), "pool": str(pool), "device": str(device)}:
            return PublishedID(driver, pool, device)
        case _:
            raise UserError(subject_of(claim), "has an allocation without driver, pool or device", EXPECTED)
