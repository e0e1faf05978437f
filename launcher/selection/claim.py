"""The ResourceClaim of a VM: a request for each entry by deviceName, with selectors and constraints that say which card
it may be.

An entry is one device for the launcher and for KubeVirt, so it has a request of its own, with count 1.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Any

from launcher.claims import Entry, EntryKind
from launcher.selection.annotations import (
    AVOID_ID,
    AVOID_TYPE,
    DRIVER,
    FIRST,
    LONGEST_EXPRESSION,
    MEMORY,
    SELECT,
    TOGETHER,
    USE_ID,
    USE_TYPE,
    Proximity,
    Selection,
    is_nvml_id,
)
from pci import slices as words
from pci.vendors import NVIDIA, PREFIXES
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
_PLACE_NAMES = {
    **dict(zip(_PLACES.values(), ("NUMA node", "PCIe root", "PCIe switch"), strict=True)),
    f"{words.DRIVER}/{words.PRODUCT}": "product",
}
_PARTITION = re.compile(rf"{re.escape(words.DRIVER)}/{words.PARTITION}(\d+)(_\d+)?")
#: The names of a request's alternatives, which are called REQUEST/ALTERNATIVE.
_ALTERNATIVES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
#: HAMi's resource for any whole GPU of NVIDIA, and the same of other vendors: the vendor ID by resource.
ANY_GPU = {f"{prefix}/gpu": f"{vendor:04x}" for vendor, prefix in PREFIXES.items()}
_OURS = f'device.attributes["{words.DRIVER}"]'
#: The API server rejects `contains` behind orValue: not knowing that the text is short, it estimates too high a cost.
_HAS_PRODUCT = f"has({_OURS}.{words.PRODUCT})"
#: A card of a model that neither pci.ids nor we have a name for: `NVIDIA 10de:3182`. It may be of any excluded type.
_NAMELESS = (
    f"!has({_OURS}.{words.NVML_NAME}) && {_HAS_PRODUCT} && has({_OURS}.{words.DEVICE}) && "
    f"{_OURS}.{words.PRODUCT}.endsWith({_OURS}.{words.DEVICE})"
)


def place_name(attribute: str) -> str:
    """Return what devices with one value of this attribute are on."""
    if (partition := _PARTITION.fullmatch(attribute)) is not None:
        return f"partition of {partition[1]} GPUs with NVLink"
    return _PLACE_NAMES.get(attribute, attribute.rpartition("/")[2])


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


#: Of several GPUs that may be any: some of a board with partitions would nearly always be none, and no guest's.
_OFF_BOARDS = Selector(f"!has({_OURS}.{words.MODULE_ID})", f"several GPUs without {TOGETHER}: nvlink", Misfit.EXCLUDED)


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
    entries = tuple(entries)
    gpus = sum(entry.kind is EntryKind.GPU and isinstance(entry.wants, str) for entry in entries)
    of_gpu = (*_selectors(selection), *(_of_board(selection) if gpus > 1 else []))
    first = tuple(_first(selection))
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
    among_gpus = {} if of_all else {"requests": gpus}
    if selection.first and len(gpus) > 1:
        yield {"matchAttribute": f"{words.DRIVER}/{words.PRODUCT}", **among_gpus}
    bound = selection.numa_bind and len(gpus) > 1
    if bound:
        yield {"matchAttribute": _PLACES["node"], **among_gpus}
    match selection.together:
        case "nvlink" if len(gpus) > 1:
            # As many devices as the partition has GPUs are all of it.
            yield {"matchAttribute": f"{words.DRIVER}/{words.PARTITION}{len(gpus)}", **among_gpus}
        case ("node" | "root" | "switch") as place if len(requests) > 1:
            if not (bound and of_all and place == "node"):
                yield {"matchAttribute": _PLACES[place]}


def _of_resource(resource: str) -> Selector:
    name = words.of_resource(resource)
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
    memory = f'device.capacity["{words.DRIVER}"].{words.MEMORY}'
    shown = dict.fromkeys(selection.nvml_ids, words.NVML_UUID)
    expressions = {
        USE_TYPE: (_of_types(selection.use_types or ()), None),
        AVOID_TYPE: (f"!({_of_types(selection.avoid_types)}) && !({_NAMELESS})", None),
        USE_ID: (_of_ids(selection.use_ids or ()), shown.get(USE_ID, words.UUID)),
        AVOID_ID: (_not_of_ids(selection.avoid_ids), shown.get(AVOID_ID, words.UUID)),
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


def _of_board(selection: Selection) -> Iterator[Selector]:
    """Yield what several GPUs have to fit of a board with partitions."""
    if selection.together != "nvlink":
        yield _OFF_BOARDS
    elif selection.driver is not None:
        version = f'{_OURS}.?{words.FABRIC_MANAGER_VERSION}.orValue("") == {_quoted(selection.driver)}'
        yield _selector(DRIVER, selection.driver, version, words.FABRIC_MANAGER_VERSION)


def _first(selection: Selection) -> Iterator[Selector]:
    """Yield a selector for each type of which the first is to be taken that can be had."""
    text = dict(selection.given).get(FIRST, "")
    return (_selector(FIRST, text, _of_types([item]), None) for item in selection.first)


def _selector(name: str, text: str, expression: str, shows: str | None) -> Selector:
    if (size := len(expression.encode())) > LONGEST_EXPRESSION:
        raise UserError(
            "metadata.annotations",
            f"{name} becomes a selector of {size} bytes, and Kubernetes takes {LONGEST_EXPRESSION}",
            "name fewer",
        )
    return Selector(expression, f"{name} {text!r}", Misfit.EXCLUDED, shows)


def _of_types(items: Iterable[str]) -> str:
    """Return an expression for cards that pci.ids or NVML calls so. Their names differ in blanks and hyphens alone for
    most models, and NVIDIA's labels of nodes have hyphens for all blanks; HAMi may put the vendor before the vendor."""
    names = (item.upper().replace("-", " ") for item in items)
    some = f"[{', '.join(_quoted(re.sub('^(NVIDIA )+(?=NVIDIA )', '', item)) for item in names)}]"
    called = " || ".join(
        f'has({_OURS}.{name}) && {_OURS}.{name}.upperAscii().replace("-", " ").contains(word)'
        for name in (words.PRODUCT, words.NVML_NAME)
    )
    return f"{some}.exists(word, {called})"


def _of_ids(items: Iterable[str]) -> str:
    return " || ".join(
        f'{_OURS}.?{attribute}.orValue("") in [{", ".join(map(_quoted, its))}]'
        for attribute, its in _by_attribute(items).items()
    )


def _not_of_ids(items: Iterable[str]) -> str:
    """Return an expression for cards that have none of these UUIDs. A card of NVIDIA's whose NVML UUID is not known may
    have any of NVML's."""
    its = _by_attribute(items)
    none = f"!({_of_ids(items)})"
    if words.NVML_UUID not in its:
        return none
    return f'{none} && (has({_OURS}.{words.NVML_UUID}) || {_OURS}.?{words.VENDOR}.orValue("") != "{NVIDIA:04x}")'


def _by_attribute(items: Iterable[str]) -> dict[str, list[str]]:
    by_attribute: dict[str, list[str]] = {}
    for item in items:
        by_attribute.setdefault(words.NVML_UUID if is_nvml_id(item) else words.UUID, []).append(item)
    return by_attribute or {words.UUID: []}


def _quoted(text: str) -> str:
    """Return a string literal of CEL, which is written as in JSON."""
    return json.dumps(text, ensure_ascii=False)
