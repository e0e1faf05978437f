"""Names unknown to the cluster, with what may have been meant: resources that no node offers, NVML's UUIDs, which only
NVIDIA's driver knows, and models.
"""

import difflib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TypeAlias

from launcher.choosing.cluster import Cluster, PublishedDevice
from launcher.vm.cards.annotations import Selection, Word, is_of_place, nvml_id
from pci import slices as words
from pci.nvml_names import NAMES
from pci.resource import NODE_DEVICES
from pci.vendors import NVIDIA
from program.errors import UserError
from program.problem import summary

Offers: TypeAlias = Mapping[str, Mapping[str, int]]
"""How many each node has, by resource and node."""

_LONGEST = 317  # characters of a resource's name (Kubernetes' qualified name)
_MOST = 1_000  # names that are compared
MOST_TOLD = 3  # of names, of the nodes of each, and of pods


def offered_by_nodes(cluster: Cluster) -> Offers:
    """Return the resources that device plugins offer, with the amount on each node."""
    offers: dict[str, dict[str, int]] = defaultdict(dict)
    for node in cluster.states.values():
        for name in {**node.capacity, **node.allocatable}:
            if "/" in name and node.offers(name):
                offers[name][node.name] = int(node.allocatable.get(name, 0))
    return offers


def offered_by_dra(cluster: Cluster) -> Offers:
    """Return the resources that published cards would have with the device plugin."""
    offers: dict[str, dict[str, int]] = defaultdict(dict)
    for node in cluster.nodes:
        for device in node.devices:
            if isinstance(name := device.attribute(words.RESOURCE), str):
                offers[name][node.name] = offers[name].get(node.name, 0) + 1
    return offers


def instead_of(resource: str, offers: Offers) -> str:
    """Return what to do about a resource that nobody offers: the names most like it, with their nodes."""
    domain, _, name = resource.partition("/")
    if domain == NODE_DEVICES:
        return f"gpu-plugin offers it with node_devices: {{{name}: 110}} in its config"
    known = {each.casefold(): each for each in sorted(offers) if _is_known(each)}
    compared = list(known)[:_MOST]
    if near := difflib.get_close_matches(resource.casefold()[:_LONGEST], compared, n=MOST_TOLD):
        return f"did you mean {' or '.join(_offer(known[each], offers) for each in near)}?"
    if compared:
        return f"the nodes offer {summary((_offer(known[each], offers) for each in compared), MOST_TOLD)}"
    return "no node offers any: see whether gpu-plugin runs, `kubectl get pods -A -l app.kubernetes.io/name=gpu-plugin`"


def _is_known(resource: str) -> bool:
    """Return whether an entry of a VM may name the resource."""
    return len(resource) <= _LONGEST and not resource.startswith(f"{NODE_DEVICES}/")


def _offer(resource: str, offers: Offers) -> str:
    nodes = (f"{node} has {count}" for node, count in sorted(offers[resource].items()))
    return f"{resource} ({summary(nodes, MOST_TOLD)})"


_MOST_SHOWN = 3  # cards and models that are named
_LONGEST_MODEL = 128  # characters of a name that are compared
_NAMED = (words.PRODUCT, words.NVML_NAME)
_VENDOR = "NVIDIA "  # HAMi and NVIDIA's labels put it before names of NVML's without it
_PAGE = "docs/choosing.md#nvmls-uuids"


def refuse_unknown_ids(selection: Selection, cluster: Cluster | None) -> None:
    """Raise UserError for an NVML UUID that no card is known to have, if some card may have it: the VM would wait for
    ever, or get the card that it excludes. Without a cluster no card's UUID is known.

    It is no error to exclude a UUID that no card has.
    """
    devices = [] if cluster is None else [(node.name, device) for node in cluster.nodes for device in node.devices]
    places = {device.attribute(words.UUID) for _, device in devices}
    known = {device.attribute(words.NVML_UUID) for _, device in devices}
    for name, items in selection.ids.items():
        ids = [nvml_id(each) for each in items if each not in places and not is_of_place(each)]
        if cluster is None and ids:
            wrong = f"{name} names {summary(ids, _MOST_SHOWN)}, and which card has NVML's UUID is not known here"
            fix = f"name a file of what `kubectl get resourceslices -o json` prints with --cluster ({_PAGE})"
            raise UserError("metadata.annotations", wrong, fix)
        missing = [each for each in ids if each not in known]
        unknown = [f"{device.id.name} of {node}" for node, device in devices if _is_nameless(device)]
        if missing and unknown:
            raise UserError(
                "metadata.annotations",
                f"{name} names {summary(missing, _MOST_SHOWN)}, which may be of one of these, whose NVML UUID is not "
                f"known: {summary(unknown, _MOST_SHOWN)}",
                f"run nvidia-smi -L while NVIDIA's driver has the card, then gpu-plugin bind ({_PAGE})",
            )
        if name == Word.USE_ID and missing and len(missing) == len(selection.use_ids or ()):
            wrong = f"{name} names {summary(missing, _MOST_SHOWN)}, which no card of the cluster has"
            raise UserError("metadata.annotations", wrong, "see what `gpu-launcher fit` prints without the annotation")


def _is_nameless(device: PublishedDevice) -> bool:
    """Return whether the device has an unknown NVML UUID, its own or that of the card that it is a part of: it is a GPU
    of NVIDIA's, and no NVSwitch."""
    is_nvidias = (device.id.driver, device.attribute(words.VENDOR)) == (words.DRIVER, f"{NVIDIA:04x}")
    is_switch = "NVSwitch" in str(device.attribute(words.PRODUCT))
    return is_nvidias and not is_switch and device.attribute(words.NVML_UUID) is None


def nobodys(selection: Selection, cluster: Cluster) -> Iterator[str]:
    """Yield a sentence for each UUID that no card has, and for each name that is in no known model's name, with the
    most similar models; for the first few of each annotation."""
    devices = [device for node in cluster.nodes for device in node.devices]
    uuids = {device.attribute(name) for device in devices for name in (words.UUID, words.NVML_UUID)}
    for word, items in selection.ids.items():
        for item in islice((item for item in items if uuids.isdisjoint((item, nvml_id(item)))), _MOST_SHOWN):
            yield f"{word}: no card here is known to have the UUID {item}"
    published = {device.attribute(name) for device in devices for name in _NAMED}
    models = {_plain(name): name for name in sorted({*NAMES.values(), *map(str, published - {None})})}
    for word, items in selection.types.items():
        unknown = (item for item in items if not any(_plain(item).removeprefix(_VENDOR) in model for model in models))
        for item in islice(unknown, _MOST_SHOWN):
            nearest = summary(models[each] for each in _nearest(_plain(item)[:_LONGEST_MODEL], list(models)))
            yield f"{word}: no card here, and no known model, is called {item!r:.60}; the nearest: {nearest}"


def _nearest(name: str, models: list[str]) -> list[str]:
    """Return the models that contain the name, ignoring blanks; if there are none, those with similar names."""
    same = [model for model in models if name.replace(" ", "") in model.replace(" ", "")]
    return same[:_MOST_SHOWN] or difflib.get_close_matches(name, models, n=_MOST_SHOWN, cutoff=0)


def _plain(name: str) -> str:
    return name.upper().replace("-", " ")
