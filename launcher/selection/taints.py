"""Taints of nodes and of devices, and what tolerates them: both have one form, and one rule. An admin's DeviceTaintRule
adds a taint to the devices that it selects."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from launcher.selection.objects import EXPECTED, called, mapping_of, names, part_of
from program.errors import UserError

_BLOCKING = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint; `rule`: the DeviceTaintRule that adds it, if any."""

    key: str
    value: str
    effect: str
    rule: str | None = None

    def __str__(self) -> str:
        text = f"{self.key}={self.value}" if self.value else self.key
        return text if self.rule is None else f"{text} by DeviceTaintRule {self.rule}"


@dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration; None tolerates any key or effect."""

    key: str | None
    operator: str
    value: str
    effect: str | None


def read_taint(taint: Mapping[str, Any], owner: Mapping[str, Any]) -> Taint:
    match taint:
        case {"key": str(key), "effect": str(effect)}:
            return Taint(key, str(taint.get("value") or ""), effect)
        case _:
            raise UserError(called(owner), "has a taint without key or effect", EXPECTED)


@dataclass(frozen=True, slots=True)
class TaintRule:
    """A DeviceTaintRule: the taint of each device of this driver, pool and name; None is any."""

    driver: str | None
    pool: str | None
    device: str | None
    taint: Taint


def read_rule(rule: Mapping[str, Any]) -> TaintRule:
    """Read a DeviceTaintRule; UserError for what Kubernetes before 1.35 could also select by.

    A rule without a selector is of all devices to the scheduler (1.36, resourceslice/tracker), though not to the
    controller that evicts pods.
    """
    spec = mapping_of(rule, "spec", rule)
    selector = part_of(spec, "deviceSelector", rule)
    for name in ("deviceClassName", "selectors"):
        if selector.get(name):
            fix = "select by driver, pool and device, as Kubernetes does since 1.35"
            raise UserError(called(rule), f"selects devices by {name}, which fit does not judge", fix)
    driver, pool, device = (
        None if (value := selector.get(key)) is None else str(value) for key in ("driver", "pool", "device")
    )
    taint = replace(read_taint(mapping_of(spec, "taint", rule), rule), rule=names(rule)[1])
    return TaintRule(driver, pool, device, taint)


def read_toleration(toleration: Mapping[str, Any]) -> Toleration:
    return Toleration(
        str(toleration["key"]) if toleration.get("key") else None,
        str(toleration.get("operator") or "Equal"),
        str(toleration.get("value") or ""),
        str(toleration["effect"]) if toleration.get("effect") else None,
    )


def keeps_away(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    """Return whether nothing new comes where this taint is, since no toleration tolerates it."""
    return taint.effect in _BLOCKING and not any(_tolerates(each, taint) for each in tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether Kubernetes' Toleration, or its DeviceToleration, tolerates the taint."""
    if toleration.effect not in (None, taint.effect) or toleration.key not in (None, taint.key):
        return False
    return toleration.operator == "Exists" or (toleration.key is not None and toleration.value == taint.value)
