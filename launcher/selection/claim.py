"""The ResourceClaim of a VM: a request for each entry by deviceName, with selectors and constraints that say which card
it may be.

An entry is a device for the launcher, and for KubeVirt, so each has a request of its own, of count 1.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Any

from launcher.claims import Entry, EntryKind
from launcher.selection.annotations import (
    AVOID_ID,
    AVOID_TYPE,
    LONGEST_EXPRESSION,
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
PLACE_NAMES = dict(zip(_PLACES.values(), ("NUMA node", "PCIe root", "PCIe switch"), strict=True))
#: Resources that are no model's: HAMi's word, and its like. Any whole GPU of the vendor's.
_ANY_GPU = {f"{prefix}/gpu": f"{vendor:04x}" for vendor, prefix in PREFIXES.items()}
_OURS = f'device.attributes["{words.DRIVER}"]'
#: Of a text behind orValue the API server doesn't know that it is short, and finds that to look into it costs too much.
_HAS_PRODUCT = f"has({_OURS}.{words.PRODUCT})"


class Misfit(IntEnum):
    """Why a card cannot be a VM's, in the order in which it is judged: the later, the nearer the card has come."""

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
    """A CEL expression over Kubernetes' `device`. `source` is what it comes from: a DeviceClass, a resource, an
    annotation. `misfit` is why a card cannot be the VM's for which it is false, and `shows` the attribute to show."""

    expression: str
    source: str
    misfit: Misfit
    shows: str | None = None


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A device that is to be allocated for an entry. `name` is its own in the claim."""

    name: str
    entry: Entry
    selectors: tuple[Selector, ...]


@dataclass(frozen=True, slots=True)
class Constraint:
    """The requests of these names are to have one value of an attribute, whose domain stands before it."""

    attribute: str
    requests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VMClaim:
    """What is to be claimed for a VM: see the module."""

    requests: tuple[DeviceRequest, ...]
    constraints: tuple[Constraint, ...]

    def spec(self) -> dict[str, Any]:
        """Return the spec of a ResourceClaim, of resource.k8s.io/v1."""
        requests = [
            {
                "name": request.name,
                "exactly": {
                    "deviceClassName": DEVICE_CLASS,
                    "selectors": [{"cel": {"expression": selector.expression}} for selector in request.selectors],
                },
            }
            for request in self.requests
        ]
        every = [request.name for request in self.requests]
        constraints = [
            {
                "matchAttribute": constraint.attribute,
                **({"requests": list(constraint.requests)} if list(constraint.requests) != every else {}),
            }
            for constraint in self.constraints
        ]
        return {"devices": {"requests": requests, **({"constraints": constraints} if constraints else {})}}


def claim_for(entries: Iterable[Entry], selection: Selection) -> VMClaim | None:
    """Return the claim for the entries that are by deviceName; None if there are none.

    What is selected holds for GPUs, what is `together` for all. UserError for what no ResourceClaim can hold.
    """
    of_gpu = _selectors(selection)
    requests: list[DeviceRequest] = []
    numbers = dict.fromkeys(EntryKind, 0)
    for entry in entries:
        name = f"{entry.kind}-{numbers[entry.kind]}"
        numbers[entry.kind] += 1
        if isinstance(entry.wants, str):
            chosen = of_gpu if entry.kind is EntryKind.GPU else ()
            requests.append(DeviceRequest(name, entry, (_of_resource(entry.wants), *chosen)))
    if len(requests) > _MOST_REQUESTS:
        raise UserError(
            "spec.domain.devices",
            f"has {len(requests)} entries by deviceName, and a ResourceClaim holds {_MOST_REQUESTS} requests",
            "claim some of them yourself, and name that by claimName",
        )
    return VMClaim(tuple(requests), tuple(_constraints(requests, selection))) if requests else None


def _constraints(requests: Sequence[DeviceRequest], selection: Selection) -> Iterable[Constraint]:
    """One card is with itself on whatever it is on, known or not."""
    gpus = tuple(request.name for request in requests if request.entry.kind is EntryKind.GPU)
    every = tuple(request.name for request in requests)
    if selection.numa_bind and len(gpus) > 1:
        yield Constraint(_PLACES["node"], gpus)
    if selection.together is not None and len(every) > 1:
        both = selection.numa_bind and selection.together == "node" and gpus == every
        if not both:
            yield Constraint(_PLACES[selection.together], every)


def _of_resource(resource: str) -> Selector:
    name = f'{_OURS}.?{words.RESOURCE}.orValue("") == {_quoted(fitted(resource))}'
    if (vendor := _ANY_GPU.get(resource)) is None:
        return Selector(name, resource, Misfit.OTHER_MODEL, words.RESOURCE)
    # A switch of NVLink is its vendor's too, where a config offers one.
    gpu = (
        f'{_OURS}.?{words.VENDOR}.orValue("") == "{vendor}" && {_OURS}.?{words.TYPE}.orValue("") == "card" && '
        f'!({_HAS_PRODUCT} && {_OURS}.{words.PRODUCT}.contains("NVSwitch"))'
    )
    return Selector(f"{name} || {gpu}", resource, Misfit.OTHER_VENDOR, words.RESOURCE)


def _selectors(selection: Selection) -> tuple[Selector, ...]:
    given = dict(selection.given)
    own_id = f'{_OURS}.?{words.UUID}.orValue("")'

    def types(items: Iterable[str]) -> str:
        some = f"[{', '.join(_quoted(item.upper()) for item in items)}]"
        return f"{_HAS_PRODUCT} && {some}.exists(word, {_OURS}.{words.PRODUCT}.upperAscii().contains(word))"

    def ids(items: Iterable[str]) -> str:
        return f"{own_id} in [{', '.join(map(_quoted, items))}]"

    expressions: list[tuple[str, str, str | None]] = []
    if selection.use_types is not None:
        expressions.append((USE_TYPE, types(selection.use_types), None))
    if selection.avoid_types:
        expressions.append((AVOID_TYPE, f"!({types(selection.avoid_types)})", None))
    if selection.use_ids is not None:
        expressions.append((USE_ID, ids(selection.use_ids), words.UUID))
    if selection.avoid_ids:
        expressions.append((AVOID_ID, f"!({ids(selection.avoid_ids)})", words.UUID))
    if selection.select is not None:
        expressions.append((SELECT, selection.select, None))
    for name, expression, _ in expressions:
        if len(expression.encode()) > LONGEST_EXPRESSION:
            raise UserError(
                "metadata.annotations",
                f"{name} becomes a selector of {len(expression.encode())} bytes, and Kubernetes takes "
                f"{LONGEST_EXPRESSION}",
                "name fewer",
            )
    return tuple(
        Selector(expression, f"{name} {given[name]!r}", Misfit.EXCLUDED, shows)
        for name, expression, shows in expressions
    )


def _quoted(text: str) -> str:
    """Return the text as CEL writes it, which is as JSON does."""
    return json.dumps(text, ensure_ascii=False)
