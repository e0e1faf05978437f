"""Which nodes and devices take a pod: by its nodeSelector and required node affinity, as the scheduler matches them
(k8s.io/component-helpers/scheduling/corev1/nodeaffinity), and by taints and tolerations.

Taints of nodes and of devices have one form, and one rule. An admin's DeviceTaintRule adds a taint to the devices that
it selects.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launcher.choosing.objects import EXPECTED, mapping_of, names, objects_of, part_of, subject_of
from program.errors import UserError
from program.problem import summary

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
            raise UserError(subject_of(owner), "has a taint without key or effect", EXPECTED)


@dataclass(frozen=True, slots=True)
class TaintRule:
    """A DeviceTaintRule: the taint of each device of this driver, pool and name; None matches any."""

    driver: str | None
    pool: str | None
    device: str | None
    taint: Taint


def read_rule(rule: Mapping[str, Any]) -> TaintRule:
    """Read a DeviceTaintRule; UserError for the selectors that only Kubernetes before 1.35 had.

    The scheduler takes a rule without a selector as one for all devices (1.36, resourceslice/tracker); the controller
    that evicts pods does not.
    """
    spec = mapping_of(rule, "spec", rule)
    selector = part_of(spec, "deviceSelector", rule)
    for name in ("deviceClassName", "selectors"):
        if selector.get(name):
            fix = "select by driver, pool and device, as Kubernetes does since 1.35"
            raise UserError(subject_of(rule), f"selects devices by {name}, which fit does not judge", fix)
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
    """Return whether this taint keeps new pods away, because no toleration tolerates it."""
    return taint.effect in _BLOCKING and not any(_tolerates(each, taint) for each in tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Return whether Kubernetes' Toleration, or its DeviceToleration, tolerates the taint."""
    if toleration.effect not in (None, taint.effect) or toleration.key not in (None, taint.key):
        return False
    return toleration.operator == "Exists" or (toleration.key is not None and toleration.value == taint.value)


_MOST = 1_000  # expressions of one pod: each is asked of each node
_MOST_SHOWN = 3  # values
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class Requirement:
    """A condition on a node's label, or with `of_field` on the node's name."""

    key: str
    operator: str
    values: tuple[str, ...]
    of_field: bool = False

    def __str__(self) -> str:
        shown = f" [{summary(self.values, _MOST_SHOWN)}]" if self.values else ""
        return f"{self.key} {self.operator}{shown}"

    def holds(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether a node with this name and these labels meets the condition."""
        value = name if self.of_field else labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return value is not None and self._compares(value)
            case _:
                return False

    def _compares(self, value: str) -> bool:
        try:
            (bound,) = self.values
            return int(value) > int(bound) if self.operator == "Gt" else int(value) < int(bound)
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class NodeAffinity:
    """A node needs the labels of the `selector`, and has to match all requirements of one of the `terms`; None demands
    none."""

    selector: tuple[Requirement, ...]
    terms: tuple[tuple[Requirement, ...], ...] | None

    def unmet(self, name: str, labels: Mapping[str, str]) -> str | None:
        """Return what keeps the pod from a node, in words after the node's name; None if nothing does."""
        for wanted in self.selector:
            if not wanted.holds(name, labels):
                has, label = labels.get(wanted.key), f"{wanted.key}={wanted.values[0]}"
                return f"has no label {label}" if has is None else f"has the label {wanted.key}={has}, not {label}"
        if self.terms is None:
            return None
        failing = [next((each for each in term if not each.holds(name, labels)), None) for term in self.terms]
        # A term that asks for nothing is matched by no node.
        if any(each is None and term for each, term in zip(failing, self.terms, strict=True)):
            return None
        first = next((each for each in failing if each is not None), None)
        return f"does not match the required node affinity{'' if first is None else f': {first}'}"


def affinity_of(spec: Mapping[str, Any], pod: Mapping[str, Any]) -> NodeAffinity:
    """Read a pod's `spec`; UserError for another form than the API's, and for more requirements than _MOST."""
    selector = tuple(
        Requirement(str(key), "In", (str(value),)) for key, value in part_of(spec, "nodeSelector", pod).items()
    )
    required = part_of(part_of(part_of(spec, "affinity", pod), "nodeAffinity", pod), _REQUIRED, pod)
    terms = tuple(tuple(_requirements(term, pod)) for term in objects_of(required, "nodeSelectorTerms", pod))
    count = len(selector) + sum(1 + len(term) for term in terms)
    if count > _MOST:
        raise UserError(subject_of(pod), f"asks {count} things of its node", f"expected at most {_MOST}")
    return NodeAffinity(selector, terms if required else None)


def _requirements(term: Mapping[str, Any], pod: Mapping[str, Any]) -> Iterator[Requirement]:
    for key in ("matchExpressions", "matchFields"):
        for each in objects_of(term, key, pod):
            values: Sequence[Any] = each.get("values") or ()
            if not isinstance(values, list | tuple):
                raise UserError(subject_of(pod), f"{key} has values that are no list", EXPECTED)
            yield Requirement(
                str(each.get("key")), str(each.get("operator")), tuple(map(str, values)), of_field=key == "matchFields"
            )
