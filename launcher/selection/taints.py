"""Taints of nodes and of devices, and what tolerates them: both have one form, and one rule."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from launcher.selection.objects import EXPECTED, called
from program.errors import UserError

_BLOCKING = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}" if self.value else self.key


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
