"""The ResourceClaim of a VM: a request for each entry by deviceName, with selectors and constraints that say which card
it may be.

An entry is one device for the launcher and for KubeVirt, so it has a request of its own, with count 1.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Any

from launcher.claims import Entry, EntryKind
from launcher.selection.annotations import (
    AVOID_ID,
    AVOID_TYPE,
    FIRST,
    LONGEST_EXPRESSION,
    MEMORY,
    SELECT,
    USE_ID,
    USE_TYPE,
    Proximity,
    Selection,
)
from pci import slices as words
from pci.slices import fitted
from pci.vendors import PREFIXES
from program.errors import UserError

#: The DeviceClass of everything that gpu-plugin serves.
DEVICE_CLASS = words.DRIVER

#: Requests of a ResourceClaim, and constraints (DeviceRequestsMaxSize, kubernetes/api resource/v1/types.go).
_MOST_REQUESTS = 32

_PLACES: Mapping[Proximity, str] = {
    "node": words.NUMA_NODE,
    "root": words.PCIE_ROOT,
    "switch": f"{words.DRIVER}/{words.SWITCH}",
}
#: By attribute.
PLACE_NAMES = {
    **dict(zip(_PLACES.values(), ("NUMA node", "PCIe root", "PCIe switch"), strict=True)),
    f"{words.DRIVER}/{words.PRODUCT}": "product",
}
#: The names of a request's alternatives, which are called REQUEST/ALTERNATIVE.
_ALTERNATIVES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
#: HAMi's resource for any whole GPU of NVIDIA, and the same of other vendors: the vendor ID by resource.
ANY_GPU = {f"{prefix}/gpu": f"{vendor:04x}" for vendor, prefix in PREFIXES.items()}
_OURS = f'device.attributes["{words.DRIVER}"]'
#: The API server rejects `contains` behind orValue: not knowing that the text is short, it estimates too high a cost.
_HAS_PRODUCT = f"has({_OURS}.{words.PRODUCT})"


class Misfit(IntEnum):
    """Why a card cannot be a VM's, in the order in which this is judged: a later reason is a nearer miss."""

    OTHER_CLAIM = auto()
    OTHER_CLASS = auto()
    OTHER_MODEL = auto()
    OTHER_VENDOR = auto()
    EXCLUDED = auto()
    UNHEALTHY = auto()
    TAKEN = auto()
    TAINTED = auto()
    UNKNOWABLE = auto()


@dataclass(frozen=True, slots=True)
class Selector:
    """A CEL expression over Kubernetes' `device`. `source`: the DeviceClass, resource or annotation that it comes from.
    `misfit`: why a card cannot be the VM's if the expression is false for it. `shows`: the attribute or capacity to
    show then."""

    expression: str
    source: str
    misfit: Misfit
    shows: str | None = None


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A request for an entry's device; `name` is the request's in the claim. The device has to fit all `selectors`, and
    the earliest of `first_available` that it can be had for, unless there is none."""

    name: str
    entry: Entry
    selectors: tuple[Selector, ...]
    first_available: tuple[Selector, ...] = ()

    def spec(self) -> dict[str, Any]:
        """Return the request as the API has it."""
        if not self.first_available:
            return {"name": self.name, "exactly": _spec(self.selectors)}
        alternatives = [
            {"name": name, **_spec((*self.selectors, selector))}
            for name, selector in zip(_ALTERNATIVES, self.first_available, strict=False)
        ]
        return {"name": self.name, "firstAvailable": alternatives}


@dataclass(frozen=True, slots=True)
class VMClaim:
    """The ResourceClaim of a VM: its requests, and its constraints as the API has them."""

    requests: tuple[DeviceRequest, ...]
    constraints: tuple[Mapping[str, Any], ...]

    def spec(self) -> dict[str, Any]:
        """Return the spec of a ResourceClaim, of resource.k8s.io/v1."""
        requests = [request.spec() for request in self.requests]
        constraints = list(self.constraints)
        return {"devices": {"requests": requests, **({"constraints": constraints} if constraints else {})}}


def _spec(selectors: Iterable[Selector]) -> dict[str, Any]:
    expressions = [{"cel": {"expression": selector.expression}} for selector in selectors]
    return {"deviceClassName": DEVICE_CLASS, "selectors": expressions}


def claim_for(entries: Iterable[Entry], selection: Selection) -> VMClaim | None:
    """Return the claim for the entries by deviceName; None without any. UserError if no ResourceClaim can hold it.

    `together` is about all devices, everything else in a selection about GPUs.
    """
    of_gpu, first = tuple(_selectors(selection)), tuple(_first(selection))
    requests: list[DeviceRequest] = []
    numbers = dict.fromkeys(EntryKind, 0)
    for entry in entries:
        name = f"{entry.kind}-{numbers[entry.kind]}"
        numbers[entry.kind] += 1
        if isinstance(entry.wants, str):
            is_gpu, own = entry.kind is EntryKind.GPU, _of_resource(entry.wants)
            requests.append(
                DeviceRequest(name, entry, (own, *of_gpu), first) if is_gpu else DeviceRequest(name, entry, (own,))
            )
    if len(requests) > _MOST_REQUESTS:
        raise UserError(
            "spec.domain.devices",
            f"has {len(requests)} entries by deviceName, and a ResourceClaim holds {_MOST_REQUESTS} requests",
            "claim some of them yourself, and name that by claimName",
        )
    return VMClaim(tuple(requests), tuple(_constraints(requests, selection))) if requests else None


def _constraints(requests: Sequence[DeviceRequest], selection: Selection) -> Iterable[Mapping[str, Any]]:
    """Yield the constraints. A single card has none: it could not be in an unknown place then."""
    gpus = [request.name for request in requests if request.entry.kind is EntryKind.GPU]
    of_all = len(gpus) == len(requests)
    if selection.first and len(gpus) > 1:
        yield {"matchAttribute": f"{words.DRIVER}/{words.PRODUCT}", "requests": gpus}
    bound = selection.numa_bind and len(gpus) > 1
    if bound:
        yield {"matchAttribute": _PLACES["node"], **({} if of_all else {"requests": gpus})}
    if selection.together is not None and len(requests) > 1 and not (bound and of_all and selection.together == "node"):
        yield {"matchAttribute": _PLACES[selection.together]}


def _of_resource(resource: str) -> Selector:
    name = f'{_OURS}.?{words.RESOURCE}.orValue("") == {_quoted(fitted(resource))}'
    if (vendor := ANY_GPU.get(resource)) is None:
        return Selector(name, resource, Misfit.OTHER_MODEL, words.RESOURCE)
    # A switch of NVLink is its vendor's too, where a config offers one.
    gpu = (
        f'{_OURS}.?{words.VENDOR}.orValue("") == "{vendor}" && {_OURS}.?{words.TYPE}.orValue("") == "card" && '
        f'!({_HAS_PRODUCT} && {_OURS}.{words.PRODUCT}.contains("NVSwitch"))'
    )
    return Selector(f"{name} || {gpu}", resource, Misfit.OTHER_VENDOR, words.RESOURCE)


def _selectors(selection: Selection) -> Iterator[Selector]:
    """Yield a selector for each annotation that every GPU has to fit; UserError for one that is too long."""
    own_id = f'{_OURS}.?{words.UUID}.orValue("")'
    memory = f'device.capacity["{words.DRIVER}"].{words.MEMORY}'

    def ids(items: Iterable[str]) -> str:
        return f"{own_id} in [{', '.join(map(_quoted, items))}]"

    expressions = {
        USE_TYPE: (_types(selection.use_types or ()), None),
        AVOID_TYPE: (f"!({_types(selection.avoid_types)})", None),
        USE_ID: (ids(selection.use_ids or ()), words.UUID),
        AVOID_ID: (f"!({ids(selection.avoid_ids)})", words.UUID),
        MEMORY: (
            f"has({memory}) && {memory}.compareTo(quantity({_quoted(selection.memory or '0')})) >= 0",
            words.MEMORY,
        ),
        SELECT: (selection.select or "", None),
    }
    for name, text in selection.given:
        if name not in expressions:
            continue  # a constraint, or alternatives
        expression, shows = expressions[name]
        yield _selector(name, text, expression, shows)


def _first(selection: Selection) -> Iterator[Selector]:
    """Yield a selector for each type of which the first is to be taken that can be had."""
    text = dict(selection.given).get(FIRST, "")
    return (_selector(FIRST, text, _types([item]), None) for item in selection.first)


def _selector(name: str, text: str, expression: str, shows: str | None) -> Selector:
    if (size := len(expression.encode())) > LONGEST_EXPRESSION:
        raise UserError(
            "metadata.annotations",
            f"{name} becomes a selector of {size} bytes, and Kubernetes takes {LONGEST_EXPRESSION}",
            "name fewer",
        )
    return Selector(expression, f"{name} {text!r}", Misfit.EXCLUDED, shows)


def _types(items: Iterable[str]) -> str:
    """Return the expression for a card whose product's name contains one of the items."""
    some = f"[{', '.join(_quoted(item.upper()) for item in items)}]"
    return f"{_HAS_PRODUCT} && {some}.exists(word, {_OURS}.{words.PRODUCT}.upperAscii().contains(word))"


def _quoted(text: str) -> str:
    """Return a string literal of CEL, which is written as in JSON."""
    return json.dumps(text, ensure_ascii=False)
