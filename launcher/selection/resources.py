"""The resources of devices that nodes offer, and which of them a name that none offers may mean."""

import difflib
from collections import defaultdict
from collections.abc import Mapping
from typing import TypeAlias

from launcher.selection.cluster import Cluster
from pci import slices as words
from pci.resource import NODE_DEVICES
from program.problem import listed

Offers: TypeAlias = Mapping[str, Mapping[str, int]]
"""How many each node has, by resource and node."""

_LONGEST = 317  # characters of a resource's name (Kubernetes' qualified name)
_MOST = 1_000  # names that are compared
MOST_TOLD = 3  # of names, of the nodes of each, and of pods


def offered_by_nodes(cluster: Cluster) -> Offers:
    """Return what device plugins offer."""
    offers: dict[str, dict[str, int]] = defaultdict(dict)
    for node in cluster.states.values():
        for name in {**node.capacity, **node.allocatable}:
            if "/" in name and node.offers(name):
                offers[name][node.name] = int(node.allocatable.get(name, 0))
    return offers


def offered_by_dra(cluster: Cluster) -> Offers:
    """Return the resources that published cards would have at the device plugin."""
    offers: dict[str, dict[str, int]] = defaultdict(dict)
    for node in cluster.nodes:
        for device in node.devices:
            if isinstance(name := device.attribute(words.RESOURCE), str):
                offers[name][node.name] = offers[name].get(node.name, 0) + 1
    return offers


def instead_of(resource: str, offers: Offers) -> str:
    """Return what to do about a resource that nobody offers: the names that are most like it, with their nodes."""
    domain, _, name = resource.partition("/")
    if domain == NODE_DEVICES:
        return f"gpu-plugin offers it with node_devices: {{{name}: 110}} in its config"
    known = {each.casefold(): each for each in sorted(offers) if _is_known(each)}
    compared = list(known)[:_MOST]
    if near := difflib.get_close_matches(resource.casefold()[:_LONGEST], compared, n=MOST_TOLD):
        return f"did you mean {' or '.join(_told(known[each], offers) for each in near)}?"
    if compared:
        return f"the nodes offer {listed((_told(known[each], offers) for each in compared), MOST_TOLD)}"
    return "no node offers any: see whether gpu-plugin runs, `kubectl get pods -A -l app.kubernetes.io/name=gpu-plugin`"


def _is_known(resource: str) -> bool:
    """Return whether an entry of a VM may name the resource."""
    return len(resource) <= _LONGEST and not resource.startswith(f"{NODE_DEVICES}/")


def _told(resource: str, offers: Offers) -> str:
    nodes = (f"{node} has {count}" for node, count in sorted(offers[resource].items()))
    return f"{resource} ({listed(nodes, MOST_TOLD)})"
