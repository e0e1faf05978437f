"""Random nodes with cards of ours and network cards of another driver, some with lists as attributes (KEP-5491), for
pods with claims of several classes and with resources that classes serve by name (KEP-5004): the scheduler gives each
pod the devices that `fit` names."""

from collections.abc import Mapping
from random import Random
from typing import Any, NamedTuple

from launcher.choosing.cluster import cluster_of
from launcher.choosing.fit import fit_of
from launcher.choosing.obstacles import asking
from launcher.choosing.requirements import NamedClaim
from launcher.vm.cards.annotations import read_selection
from pci import slices as words

Object = dict[str, Any]

NIC = "nic.example.com"
_RESOURCE = "resource.k8s.io/v1"
_PORT, _GPU, _IMPLICIT = "example.com/port", "example.com/gpu", "deviceclass.resource.kubernetes.io/fast"
_IS_CARD, _IS_NIC = f'device.driver == "{words.DRIVER}"', f'device.driver == "{NIC}"'
_MODELS = ("H100", "L40S")


def _class(name: str, resource: str | None, *expressions: str) -> Object:
    spec: Object = {"selectors": [{"cel": {"expression": each}} for each in expressions]}
    named = {} if resource is None else {"extendedResourceName": resource}
    return {"apiVersion": _RESOURCE, "kind": "DeviceClass", "metadata": {"name": name}, "spec": {**spec, **named}}


#: Two of them serve one resource: the newest does, or the first by name.
CLASSES = (
    _class("h100", _GPU, _IS_CARD, f'device.attributes["{words.DRIVER}"].productName.contains("H100")'),
    _class("nic", _PORT, _IS_NIC),
    _class("slow", _PORT, _IS_NIC, f'device.attributes["{NIC}"].speed < 100'),
    _class("fast", None, _IS_NIC, f'device.attributes["{NIC}"].speed >= 100'),
)
_NAMES = (words.DRIVER, *(each["metadata"]["name"] for each in CLASSES))


class Case(NamedTuple):
    """A node, what else it has, and a pod for it with its template; `cards`: what fit names, None if nothing."""

    node: Object
    objects: list[Object]
    pod: Object
    cards: list[str] | None


def case_of(random: Random, name: str, classes: list[Object], *, lists: bool) -> Case:
    """Return a random case on a node of this name; `classes`: as the API server has them; `lists`: some attributes are
    lists."""
    devices = [_card(random, number, lists=lists) for number in range(random.randint(0, 5))]
    nics = [_nic(random, number, lists=lists) for number in range(random.randint(0, 5))]
    slices = [_slice(name, words.DRIVER, devices), _slice(name, NIC, nics)]
    every = [(words.DRIVER, each["name"]) for each in devices] + [(NIC, each["name"]) for each in nics]
    taken = [_taking(f"taken-{name}", name, *random.choice(every))] if every and random.random() < 0.5 else []
    template = {
        "apiVersion": _RESOURCE,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": {"devices": _wish(random)}},
    }
    room = {"cpu": "8", "memory": "8Gi", "pods": "10"}
    room |= {each: str(random.randint(0, 2)) for each in (_PORT, _GPU) if random.random() < 0.3}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]},
    }
    pod = _pod(random, name)
    claims = [NamedClaim("claim", "ResourceClaimTemplate", name)] if "resourceClaims" in pod["spec"] else []
    objects = [*slices, *taken, template]
    cluster = cluster_of([node, *objects, *classes])
    fit = fit_of("pod", "default", (), read_selection({}), claims, cluster, dra=False, pod=asking(pod))
    cards = [device.id.name for placement in fit.fitting for device in placement.devices or ()]
    return Case(node, objects, pod, cards if fit.fitting else None)


def cards_of(pod: Mapping[str, Any], claims: Mapping[str, Any]) -> list[str] | None:
    """Return what the scheduler gave a pod, its own claim's first; None if it gave it no node."""
    status = pod.get("status", {})
    names = [each.get("resourceClaimName") for each in status.get("resourceClaimStatuses", ())]
    names += [status.get("extendedResourceClaimStatus", {}).get("resourceClaimName")]
    results = [
        claims[name].get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
        for name in names
        if name in claims
    ]
    cards = [each["device"] for its in results for each in sorted(its, key=lambda each: str(each["request"]))]
    return cards if pod["spec"].get("nodeName") else None


def _place(random: Random, *, lists: bool) -> Object:
    """The standard attributes of a place, as one value, as several or not known."""
    nodes = random.choice([{"int": 0}, {"int": 1}, *([{"ints": [0, 1]}, {"ints": [1, 2]}] if lists else [])])
    roots = random.choice(["pci0000:00", "pci0000:40"])
    either = {"strings": ["pci0000:00", "pci0000:40"]} if lists and random.random() < 0.2 else {"string": roots}
    return {
        name: value for name, value in ((words.NUMA_NODE, nodes), (words.PCIE_ROOT, either)) if random.random() < 0.9
    }


def _card(random: Random, number: int, *, lists: bool) -> Object:
    attributes = {"productName": {"string": f"NVIDIA {random.choice(_MODELS)}"}, **_place(random, lists=lists)}
    return {"name": f"card-{number}", "attributes": attributes}


def _nic(random: Random, number: int, *, lists: bool) -> Object:
    return {
        "name": f"nic-{number}",
        "attributes": {"speed": {"int": random.choice([25, 100, 400])}, **_place(random, lists=lists)},
    }


def _slice(node: str, driver: str, devices: list[Object]) -> Object:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices}
    metadata = {"name": f"{node}-{driver}"}
    return {"apiVersion": _RESOURCE, "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def _taking(name: str, pool: str, driver: str, device: str) -> Object:
    result = {"request": "one", "driver": driver, "pool": pool, "device": device}
    return {
        "apiVersion": _RESOURCE,
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": words.DRIVER}}]}},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


def _wish(random: Random) -> Object:
    """One to three requests, some with alternatives, and what they have to share."""
    requests: list[Object] = []
    for number in range(random.randint(1, 3)):
        name = f"r{number}"
        if random.random() < 0.25:
            kinds = [{"name": each, "deviceClassName": each} for each in random.sample(_NAMES[1:], 2)]
            requests.append({"name": name, "firstAvailable": kinds})
        else:
            exactly = {"deviceClassName": random.choice(_NAMES), "count": random.choice([1, 1, 2])}
            requests.append({"name": name, "exactly": exactly})
    names = [each["name"] for each in requests]
    constraints = [
        {"matchAttribute": attribute, "requests": random.sample(names, random.randint(1, len(names)))}
        for attribute in (words.NUMA_NODE, words.PCIE_ROOT)
        if random.random() < 0.4
    ]
    return {"requests": requests, "constraints": constraints}


def _pod(random: Random, name: str) -> Object:
    """A pod for this node alone with the template's claim, with resources, or with both."""
    asks = random.choice([{"claim"}, {"resources"}, {"claim", "resources"}])
    several = random.sample([_PORT, _GPU, _IMPLICIT], random.randint(1, 2)) if "resources" in asks else []
    amounts = {each: str(random.choice([1, 1, 2])) for each in several}
    resources: Object = {"requests": amounts, "limits": amounts}
    spec: Object = {"nodeSelector": {"kubernetes.io/hostname": name}}
    if "claim" in asks:
        resources["claims"] = [{"name": "claim"}]
        spec["resourceClaims"] = [{"name": "claim", "resourceClaimTemplateName": name}]
    spec["containers"] = [{"name": "c", "image": "none", "resources": resources}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}
