"""The ResourceClaim of a VM: a request for each entry by deviceName, with selectors and constraints on the cards.

An entry is one device for the launcher and for KubeVirt, so it has a request of its own, with count 1.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Any, assert_never

from launcher.vm.cards.annotations import LONGEST_EXPRESSION, Proximity, Selection, Word, is_of_place, nvml_id
from launcher.vm.cards.claims import Entry, EntryKind
from pci import slices as words
from pci.vendors import NVIDIA, PREFIXES
from program.errors import UserError

#: The DeviceClass of everything that gpu-plugin serves.
DEVICE_CLASS = words.DRIVER

#: Requests of a ResourceClaim, and constraints (DeviceRequestsMaxSize, kubernetes/api resource/v1/types.go).
_MOST_REQUESTS = 32

_LONGEST = 200  # characters of an annotation that are shown
#: What joins the GPUs of a board.
NVLINK = f"{Word.TOGETHER}: nvlink"
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
_RESOURCE = re.compile(re.escape(words.of_resource("")[:-1]) + r'([^"\\]+)"')
#: The API server rejects `contains` behind orValue: not knowing that the text is short, it estimates too high a cost.
_HAS_PRODUCT = f"has({_OURS}.{words.PRODUCT})"
#: A card of a model that neither pci.ids nor we have a name for: `NVIDIA 10de:3182`. It may be of any excluded type.
_NAMELESS = (
    f"!has({_OURS}.{words.NVML_NAME}) && {_HAS_PRODUCT} && has({_OURS}.{words.DEVICE}) && "
    f"{_OURS}.{words.PRODUCT}.endsWith({_OURS}.{words.DEVICE})"
)


def place_name(attribute: str) -> str:
    """Return the name of the place that devices with one value of this attribute share."""
    if (partition := _PARTITION.fullmatch(attribute)) is not None:
        return f"partition of {partition[1]} GPUs with NVLink"
    return _PLACE_NAMES.get(attribute, attribute.rpartition("/")[2])


class Rejection(IntEnum):
    """Why a card does not suit a VM, in the order of the checks: a later reason is a nearer miss."""

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
    `rejection`: why a card does not suit the VM if the expression is false for it. `shows`: the attribute or capacity
    to show then."""

    expression: str
    source: str
    rejection: Rejection
    shows: str | None = None


#: Of several GPUs that may be any: some of a board with partitions would nearly always be none, and no guest's.
OFF_BOARDS = Selector(f"!has({_OURS}.{words.MODULE_ID})", f"several GPUs without {NVLINK}", Rejection.EXCLUDED)


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A request for an entry's device; `name` is the request's in the claim. The device has to match all `selectors`,
    and one of `first_available` unless that is empty: the earliest that some device is free for."""

    name: str
    entry: Entry
    selectors: tuple[Selector, ...]
    first_available: tuple[Selector, ...] = ()

    def spec(self) -> dict[str, Any]:
        """Return the request in the API's form."""
        if not self.first_available:
            return {"name": self.name, "exactly": _spec(self.selectors)}
        alternatives = [
            {"name": name, **_spec((*self.selectors, selector))}
            for name, selector in zip(_ALTERNATIVES, self.first_available, strict=False)
        ]
        return {"name": self.name, "firstAvailable": alternatives}


@dataclass(frozen=True, slots=True)
class Constraint:
    """The devices of these `requests`, or all devices if there are none, share one value of an attribute. `source`: the
    annotation that it comes from."""

    attribute: str
    source: str
    requests: tuple[str, ...] = ()

    def spec(self) -> dict[str, Any]:
        """Return the constraint in the API's form."""
        return {"matchAttribute": self.attribute, **({"requests": [*self.requests]} if self.requests else {})}


@dataclass(frozen=True, slots=True)
class VMClaim:
    """The ResourceClaim of a VM."""

    requests: tuple[DeviceRequest, ...]
    constraints: tuple[Constraint, ...]

    def spec(self) -> dict[str, Any]:
        """Return the spec of a ResourceClaim, of resource.k8s.io/v1."""
        requests = [request.spec() for request in self.requests]
        constraints = [constraint.spec() for constraint in self.constraints]
        return {"devices": {"requests": requests, **({"constraints": constraints} if constraints else {})}}


def _spec(selectors: Iterable[Selector]) -> dict[str, Any]:
    expressions = [{"cel": {"expression": selector.expression}} for selector in selectors]
    return {"deviceClassName": DEVICE_CLASS, "selectors": expressions}


def claim_for(entries: Iterable[Entry], selection: Selection) -> VMClaim | None:
    """Return the claim for the entries by deviceName; None if there are none. UserError if no ResourceClaim can hold
    it.

    `together` is about all devices, everything else in a selection about GPUs.
    """
    numbers = dict.fromkeys(EntryKind, 0)
    names: dict[str, Entry] = {}
    for entry in entries:
        if isinstance(entry.wants, str):
            names[f"{entry.kind}-{numbers[entry.kind]}"] = entry
        numbers[entry.kind] += 1
    if len(names) > _MOST_REQUESTS:
        raise UserError(
            "spec.domain.devices",
            f"has {len(names)} entries by deviceName, and a ResourceClaim holds {_MOST_REQUESTS} requests",
            "claim some of them yourself, and name that by claimName",
        )
    gpus = tuple(name for name, entry in names.items() if entry.kind is EntryKind.GPU)
    among_gpus = () if len(gpus) == len(names) else gpus
    of_gpu: list[Selector] = []
    first: list[Selector] = []
    constraints: list[Constraint] = []
    for word, text in selection.written:
        for part in _parts(word, text, selection, of_all=len(names), of_gpus=len(gpus)):
            match part:
                case Selector():
                    (first if word is Word.FIRST else of_gpu).append(part)
                case str() as attribute:
                    is_of_all = word is Word.TOGETHER and selection.together != "nvlink"
                    constraint = Constraint(attribute, _source(word, text), () if is_of_all else among_gpus)
                    constraints += [constraint] * (constraint.spec() not in [each.spec() for each in constraints])
    if len(gpus) > 1 and selection.together != "nvlink":
        of_gpu.append(OFF_BOARDS)
    requests = (
        DeviceRequest(name, entry, (_of_resource(str(entry.wants)), *of_gpu), tuple(first))
        if entry.kind is EntryKind.GPU
        else DeviceRequest(name, entry, (_of_resource(str(entry.wants)),))
        for name, entry in names.items()
    )
    return VMClaim(tuple(requests), tuple(constraints)) if names else None


def resource_in(expression: str) -> str | None:
    """Return the resource whose selector has this expression; None for any other expression."""
    match = _RESOURCE.match(expression)
    return match[1] if match is not None and _of_resource(match[1]).expression == expression else None


def _of_resource(resource: str) -> Selector:
    name = words.of_resource(resource)
    if (vendor := ANY_GPU.get(resource)) is None:
        return Selector(name, resource, Rejection.OTHER_MODEL, words.RESOURCE)
    # A switch of NVLink is its vendor's too, where a config offers one.
    gpu = (
        f'{_OURS}.?{words.VENDOR}.orValue("") == "{vendor}" && {_OURS}.?{words.TYPE}.orValue("") == "card" && '
        f'!({_HAS_PRODUCT} && {_OURS}.{words.PRODUCT}.contains("NVSwitch"))'
    )
    return Selector(f"{name} || {gpu}", resource, Rejection.OTHER_VENDOR, words.RESOURCE)


def _parts(word: Word, text: str, selection: Selection, *, of_all: int, of_gpus: int) -> Iterator[Selector | str]:
    """Yield the parts of an annotation in the claim of a VM with `of_all` devices and `of_gpus` GPUs: selectors of a
    GPU (for FIRST one for each alternative), and attributes that all of them share. A single card gets no such
    attribute, which would exclude a card in an unknown place. UserError for a selector that is too long."""
    match word:
        case Word.USE_TYPE:
            yield _selector(word, text, _of_types(selection.use_types or ()))
        case Word.AVOID_TYPE:
            yield _selector(word, text, f"!({_of_types(selection.avoid_types)}) && !({_NAMELESS})")
        case Word.USE_ID:
            yield _selector(word, text, _of_ids(selection.use_ids or ()), _shown(selection.use_ids or ()))
        case Word.AVOID_ID:
            yield _selector(word, text, _not_of_ids(selection.avoid_ids), _shown(selection.avoid_ids))
        case Word.NUMA_BIND:
            yield from [words.NUMA_NODE] * (of_gpus > 1)
        case Word.MEMORY:
            memory = f'device.capacity["{words.DRIVER}"].{words.MEMORY}'
            least = f"quantity({_quoted(selection.memory or '0')})"
            yield _selector(word, text, f"has({memory}) && {memory}.compareTo({least}) >= 0", words.MEMORY)
        case Word.FIRST:
            yield from (_selector(word, text, _of_types([each])) for each in selection.first)
            yield from [f"{words.DRIVER}/{words.PRODUCT}"] * (of_gpus > 1)
        case Word.SELECT:
            yield _selector(word, text, selection.select or "")
        case Word.TOGETHER:
            if selection.together == "nvlink":
                # As many devices as the partition has GPUs are all of it.
                yield from [partition_of(of_gpus)] * (of_gpus > 1)
            elif selection.together is not None:
                yield from [_PLACES[selection.together]] * (of_all > 1)
        case Word.DRIVER:
            if of_gpus > 1:
                version = f'{_OURS}.?{words.FABRIC_MANAGER_VERSION}.orValue("") == {_quoted(selection.driver or "")}'
                yield _selector(word, text, version, words.FABRIC_MANAGER_VERSION)
        case _:
            assert_never(word)


def partition_of(gpus: int) -> str:
    """Return the attribute that so many GPUs with NVLink have to share."""
    return f"{words.DRIVER}/{words.PARTITION}{gpus}"


def _source(word: Word, text: str) -> str:
    return f"{word} {text if len(text) <= _LONGEST else f'{text[:_LONGEST]}...'!r}"


def _selector(word: Word, text: str, expression: str, shows: str | None = None) -> Selector:
    if (size := len(expression.encode())) > LONGEST_EXPRESSION:
        raise UserError(
            "metadata.annotations",
            f"{word} becomes a selector of {size} bytes, and Kubernetes takes {LONGEST_EXPRESSION}",
            "name fewer",
        )
    return Selector(expression, _source(word, text), Rejection.EXCLUDED, shows)


def _of_types(items: Iterable[str]) -> str:
    """Return an expression for cards with these names in pci.ids or NVML. For most models the two differ only in blanks
    and hyphens, and NVIDIA's node labels have a hyphen for each blank; HAMi may repeat the vendor."""
    names = (item.upper().replace("-", " ") for item in items)
    some = f"[{', '.join(_quoted(re.sub('^(NVIDIA )+(?=NVIDIA )', '', item)) for item in names)}]"
    called = " || ".join(
        f'has({_OURS}.{name}) && {_OURS}.{name}.upperAscii().replace("-", " ").contains(word)'
        for name in (words.PRODUCT, words.NVML_NAME)
    )
    return f"{some}.exists(word, {called})"


def _of_ids(items: Sequence[str]) -> str:
    by_attribute = {words.NVML_UUID: list(map(nvml_id, items)), words.UUID: _bare(items)}
    return (
        " || ".join(
            f'{_OURS}.?{attribute}.orValue("") in [{", ".join(map(_quoted, its))}]'
            for attribute, its in by_attribute.items()
            if its
        )
        or "false"
    )


def _not_of_ids(items: Sequence[str]) -> str:
    """Return an expression for cards that have none of these UUIDs. An NVIDIA card whose NVML UUID is unknown may have
    any of NVML's."""
    none = f"!({_of_ids(items)})"
    if all(map(is_of_place, items)):
        return none
    return f'{none} && (has({_OURS}.{words.NVML_UUID}) || {_OURS}.?{words.VENDOR}.orValue("") != "{NVIDIA:04x}")'


def _bare(items: Iterable[str]) -> list[str]:
    return [each for each in items if not each.startswith("GPU-")]


def _shown(items: Iterable[str]) -> str:
    return words.UUID if all(map(is_of_place, items)) else words.NVML_UUID


def _quoted(text: str) -> str:
    """Return a CEL string literal, which has the form of JSON's."""
    return json.dumps(text, ensure_ascii=False)
