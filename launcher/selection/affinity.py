"""Which nodes a pod may be on by their labels: its nodeSelector and required node affinity, as the scheduler matches
them (k8s.io/component-helpers/scheduling/corev1/nodeaffinity)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.selection.objects import EXPECTED, called, objects_of, part_of
from program.errors import UserError
from program.problem import listed

_MOST = 1_000  # expressions of one pod: each is asked of each node
_MOST_SHOWN = 3  # values
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a node's label, or with `of_field` its name, has to be."""

    key: str
    operator: str
    values: tuple[str, ...]
    of_field: bool = False

    def __str__(self) -> str:
        shown = f" [{listed(self.values, _MOST_SHOWN)}]" if self.values else ""
        return f"{self.key} {self.operator}{shown}"

    def holds(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether it is true of a node."""
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
    """A node needs the labels of the `selector`, and has to match all of one of the `terms`; () asks for nothing."""

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
    """Read a pod's `spec`; UserError for another form than the API's, and for more than is judged here."""
    selector = tuple(
        Requirement(str(key), "In", (str(value),)) for key, value in part_of(spec, "nodeSelector", pod).items()
    )
    required = part_of(part_of(part_of(spec, "affinity", pod), "nodeAffinity", pod), _REQUIRED, pod)
    terms = tuple(tuple(_requirements(term, pod)) for term in objects_of(required, "nodeSelectorTerms", pod))
    count = len(selector) + sum(1 + len(term) for term in terms)
    if count > _MOST:
        raise UserError(called(pod), f"asks {count} things of its node", f"expected at most {_MOST}")
    return NodeAffinity(selector, terms if required else None)


def _requirements(term: Mapping[str, Any], pod: Mapping[str, Any]) -> Iterator[Requirement]:
    for key in ("matchExpressions", "matchFields"):
        for each in objects_of(term, key, pod):
            values: Sequence[Any] = each.get("values") or ()
            if not isinstance(values, list | tuple):
                raise UserError(called(pod), f"{key} has values that are no list", EXPECTED)
            yield Requirement(
                str(each.get("key")), str(each.get("operator")), tuple(map(str, values)), of_field=key == "matchFields"
            )
