"""The devices that a VM wants of a cluster, from the ResourceClaims of gpu-launcher and from the VM's own."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from launcher.selection.claim import DEVICE_CLASS, Misfit, Selector, place_name
from launcher.selection.cluster import Cluster, PublishedID, allocated_of, device_of, selectors_of
from launcher.selection.objects import called, objects_of, part_of
from launcher.selection.taints import Toleration, read_toleration
from pci import slices as words
from program.errors import UserError

#: The selector of our class in deploy/dra, for a cluster's objects without DeviceClasses.
_OUR_CLASS = (f'device.driver == "{words.DRIVER}"',)
#: Of a claim (AllocationResultsMaxSize, kubernetes/api resource/v1/types.go).
_MOST_DEVICES = 32
_JUDGES = "fit judges requests of one or several devices by number (allocationMode: ExactCount), and matchAttribute"


@dataclass(frozen=True, slots=True)
class WantedDevice:
    """A device that is wanted. `name`: as users know it, `gpu 'gpu1'`, or request and claim. `selectors`: all that the
    device has to fit, those of its class first. `allocated`: the device that the claim already has."""

    name: str
    claim: str
    selectors: tuple[Selector, ...]
    tolerations: tuple[Toleration, ...] = ()
    allocated: PublishedID | None = None


@dataclass(frozen=True, slots=True)
class Sharing:
    """The wanted devices with these numbers have to have one value of an attribute, to be on one `place`."""

    attribute: str
    place: str
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wish:
    """All devices that a VM wants, and what they have to share."""

    devices: tuple[WantedDevice, ...]
    sharings: tuple[Sharing, ...]


def wish_of_claim(
    owner: Mapping[str, Any],
    spec: Mapping[str, Any],
    entries: Mapping[str, str],
    cluster: Cluster,
    known: Iterable[Selector] = (),
) -> Wish:
    """Read the `spec` of a ResourceClaim or of a template's claims; `owner` is the object that has it.

    `entries`: the names of the VM's entries, by request. `known`: selectors whose sources are known. UserError for a
    kind of request or constraint that fit does not judge, and for an entry whose request the claim lacks.
    """
    devices: list[WantedDevice] = []
    by_request: dict[str, list[int]] = {}
    selector_of = {selector.expression: selector for selector in known}
    allocated = {str(result.get("request")): device_of(result, owner) for result in allocated_of(owner)}
    parts = part_of(spec, "devices", owner)
    for request in objects_of(parts, "requests", owner):
        exactly = request.get("exactly")
        its_name = str(request.get("name"))
        if not isinstance(exactly, dict) or exactly.get("allocationMode") == "All" or exactly.get("adminAccess"):
            raise UserError(called(owner), f"request {its_name!r} is of another kind", _JUDGES)
        selectors = (
            *_class(str(exactly.get("deviceClassName")), cluster, called(owner)),
            *(
                selector_of.get(expression) or Selector(expression, f"a selector of {called(owner)}", Misfit.EXCLUDED)
                for expression in selectors_of(exactly, owner)
            ),
        )
        tolerations = tuple(read_toleration(each) for each in objects_of(exactly, "tolerations", owner))
        count = exactly.get("count") or 1
        if not isinstance(count, int) or count > _MOST_DEVICES:
            raise UserError(
                called(owner), f"request {its_name!r} is of {count!r:.20} devices", f"expected up to {_MOST_DEVICES}"
            )
        for _ in range(count):
            by_request.setdefault(its_name, []).append(len(devices))
            who = entries.get(its_name, f"request {its_name!r} of {called(owner)}")
            devices.append(WantedDevice(who, called(owner), selectors, tolerations, allocated.get(its_name)))
    if missing := sorted(entries.keys() - by_request.keys()):
        raise UserError(
            called(owner),
            f"has no request {missing[0]!r}, which {entries[missing[0]]} is of",
            f"expected one of {', '.join(sorted(by_request)) or 'its requests'}",
        )
    sharings = []
    for constraint in objects_of(parts, "constraints", owner):
        attribute = constraint.get("matchAttribute")
        names = constraint.get("requests") or list(by_request)
        if not (isinstance(attribute, str) and isinstance(names, list) and set(map(str, names)) <= by_request.keys()):
            raise UserError(called(owner), "has a constraint of another kind", _JUDGES)
        numbers = tuple(number for each in names for number in by_request[str(each)])
        sharings.append(Sharing(attribute, place_name(attribute), numbers))
    return Wish(tuple(devices), tuple(sharings))


def together(wishes: Iterable[Wish]) -> Wish:
    """Return all wishes as one, so that no device is given twice."""
    devices: list[WantedDevice] = []
    sharings: list[Sharing] = []
    for wish in wishes:
        sharings += (
            Sharing(each.attribute, each.place, tuple(number + len(devices) for number in each.numbers))
            for each in wish.sharings
        )
        devices += wish.devices
    return Wish(tuple(devices), tuple(sharings))


def _class(name: str, cluster: Cluster, owner: str) -> tuple[Selector, ...]:
    expressions = cluster.classes.get(name, _OUR_CLASS if name == DEVICE_CLASS else None)
    if expressions is None:
        raise UserError(
            owner, f"is of DeviceClass {name}, which is not there", "get deviceclasses with the slices and claims"
        )
    return tuple(Selector(expression, f"DeviceClass {name}", Misfit.OTHER_CLASS) for expression in expressions)
