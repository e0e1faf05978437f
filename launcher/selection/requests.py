"""What a pod asks of a node, in the numbers of the scheduler (k8s.io/component-helpers/resource, PodRequests)."""

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeAlias

from launcher.quantity import parse_amount
from launcher.selection.objects import EXPECTED, called, objects_of, part_of
from program.errors import Nonsense, UserError

Amounts: TypeAlias = Mapping[str, Decimal]
"""Exact amounts by resource: CPUs, bytes, devices."""

_LONGEST = 64  # characters of a quantity
#: What a pod can ask for as a whole (KEP-2837), and huge pages.
_OF_THE_POD = ("cpu", "memory")


def requests_of(pod: Mapping[str, Any]) -> Amounts:
    """Return what a pod asks for: all its containers, or its largest init container if that is more, and its overhead.
    A sidecar, an init container with restartPolicy Always, counts with both. UserError for another form than the API's.
    """
    spec, given = part_of(pod, "spec", pod), _given(pod)
    asked = _sum(_of_container(each, given, pod) for each in objects_of(spec, "containers", pod))
    sidecars: Amounts = {}
    largest: Amounts = {}
    for each in objects_of(spec, "initContainers", pod):
        if each.get("restartPolicy") == "Always":
            its = _of_container(each, given, pod)
            asked, sidecars = _sum((asked, its)), _sum((sidecars, its))
            largest = _most((largest, sidecars))
        else:
            largest = _most((largest, _sum((sidecars, _of_container(each, {}, pod)))))
    asked = _most((asked, largest))
    whole = amounts_of(part_of(spec, "resources", pod), "requests", pod)
    asked = {**asked, **{name: amount for name, amount in whole.items() if _is_of_the_pod(name)}}
    return _sum((asked, amounts_of(spec, "overhead", pod)))


def amounts_of(part: Mapping[str, Any], key: str, owner: Mapping[str, Any]) -> Amounts:
    """Read amounts by resource; UserError for what is no quantity."""
    try:
        return {str(name): amount_of(value) for name, value in part_of(part, key, owner).items()}
    except Nonsense as error:
        raise UserError(called(owner), f"{key}: {error.wrong}", EXPECTED) from error


def amount_of(value: Any) -> Decimal:
    """Return a quantity's exact value; Nonsense for what is none."""
    return _amount(str(value)[:_LONGEST])


@lru_cache(4096)
def _amount(text: str) -> Decimal:
    return parse_amount(text).exact


def _given(pod: Mapping[str, Any]) -> Mapping[str, Amounts]:
    """Return what containers have already, by name: more than they ask for, while a pod is resized."""
    status = part_of(pod, "status", pod)
    return {
        str(each.get("name")): _most(
            (amounts_of(part_of(each, "resources", pod), "requests", pod), amounts_of(each, "allocatedResources", pod))
        )
        for key in ("containerStatuses", "initContainerStatuses")
        for each in objects_of(status, key, pod)
        if each.get("resources") is not None
    }


def _of_container(container: Mapping[str, Any], given: Mapping[str, Amounts], pod: Mapping[str, Any]) -> Amounts:
    """Return the requests of a container, or what it has already if that is more."""
    resources = part_of(container, "resources", pod)
    # The API server does the same: who has only a limit asks for as much.
    asked = {**amounts_of(resources, "limits", pod), **amounts_of(resources, "requests", pod)}
    return _most((asked, given.get(str(container.get("name")), {})))


def _is_of_the_pod(resource: str) -> bool:
    return resource in _OF_THE_POD or resource.startswith("hugepages-")


def _sum(parts: Iterable[Amounts]) -> Amounts:
    total: dict[str, Decimal] = {}
    for name, amount in _each(parts):
        total[name] = total.get(name, Decimal(0)) + amount
    return total


def _most(parts: Iterable[Amounts]) -> Amounts:
    largest: dict[str, Decimal] = {}
    for name, amount in _each(parts):
        largest[name] = max(largest.get(name, amount), amount)
    return largest


def _each(parts: Iterable[Amounts]) -> Iterator[tuple[str, Decimal]]:
    return (item for part in parts for item in part.items())
