"""Random nodes with cards of ours and network cards of another driver, some with lists as attributes (KEP-5491), for
pods with claims of several classes and with resources that classes serve by name (KEP-5004): the scheduler gives each
pod the devices that `fit` names."""

from random import Random
from typing import NamedTuple

from launcher.choosing.cluster import cluster_of
from launcher.choosing.fit import fit_of
from launcher.choosing.obstacles import asking
from launcher.choosing.requirements import NamedClaim
from launcher.vm.cards.annotations import read_selection
from pci import slices as words
from tests.bench.objects import IS_OURS, Object, device_class, node_with, pod_of, slice_of, taking, template_of

NIC = "nic.example.com"
_PORT, _GPU, _IMPLICIT = "example.com/port", "example.com/gpu", "deviceclass.resource.kubernetes.io/fast"
_IS_NIC = f'device.driver == "{NIC}"'
_MODELS = ("H100", "L40S")


#: Two of them serve one resource: the newest does, or the first by name.
CLASSES = (
    device_class("h100", _GPU, IS_OURS, f'device.attributes["{words.DRIVER}"].productName.contains("H100")'),
    device_class("nic", _PORT, _IS_NIC),
    device_class("slow", _PORT, _IS_NIC, f'device.attributes["{NIC}"].speed < 100'),
    device_class("fast", None, _IS_NIC, f'device.attributes["{NIC}"].speed >= 100'),
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
    slices = [slice_of(name, devices), slice_of(name, nics, NIC)]
    every = [(each["name"], words.DRIVER) for each in devices] + [(each["name"], NIC) for each in nics]
    taken = [taking(f"taken-{name}", name, *random.choice(every))] if every and random.random() < 0.5 else []
    template = template_of(name, {"devices": _wish(random)})
    room = {each: str(random.randint(0, 2)) for each in (_PORT, _GPU) if random.random() < 0.3}
    node = node_with(name, **room)
    pod = _pod(random, name)
    claims = [NamedClaim("claim", "ResourceClaimTemplate", name)] if "resourceClaims" in pod["spec"] else []
    objects = [*slices, *taken, template]
    cluster = cluster_of([node, *objects, *classes])
    fit = fit_of("pod", "default", (), read_selection({}), claims, cluster, dra=False, pod=asking(pod))
    cards = [device.id.name for placement in fit.fitting for device in placement.devices or ()]
    return Case(node, objects, pod, cards if fit.fitting else None)


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
    return pod_of(name, {"kubernetes.io/hostname": name}, name if "claim" in asks else None, amounts)
