"""The parts of a cluster's objects, as `kubectl get -o json` prints them. A part of another form is a UserError that
names its object."""

from collections.abc import Mapping
from typing import Any

from program.errors import UserError

EXPECTED = "expected it as the API server has it"


def subject_of(owner: Mapping[str, Any]) -> str:
    """Return an object's name for an error: `ResourceSlice node-1-gpu`."""
    return f"{owner.get('kind')} {full_name(owner)}"


def full_name(each: Mapping[str, Any]) -> str:
    """Return NAMESPACE/NAME, or the name of an object without a namespace."""
    return "/".join(filter(None, names(each)))


def names(each: Mapping[str, Any]) -> tuple[str, str]:
    """Return namespace and name; the namespace is empty if there is none."""
    match each.get("metadata"):
        case {"name": str(name), "namespace": str(namespace)}:
            return namespace, name
        case {"name": str(name)}:
            return "", name
        case _:
            raise UserError(str(each.get("kind")), "has no metadata.name", EXPECTED)


def mapping_of(part: Mapping[str, Any], key: str, owner: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a mapping of an object; UserError if it is missing, or no mapping."""
    value = part.get(key)
    if not isinstance(value, dict):
        raise UserError(subject_of(owner), f"has no {key}", EXPECTED)
    return value


def part_of(part: Mapping[str, Any], key: str, owner: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a mapping of an object, {} if it is missing; UserError if it is no mapping."""
    value = part.get(key)
    if value is not None and not isinstance(value, dict):
        raise UserError(subject_of(owner), f"{key} is no mapping", EXPECTED)
    return value or {}


def objects_of(part: Mapping[str, Any], key: str, owner: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a list of mappings of an object, [] if it is missing; UserError if it is anything else."""
    values = part.get(key) or []
    if not (isinstance(values, list) and all(isinstance(each, dict) for each in values)):
        raise UserError(subject_of(owner), f"{key} is no list of objects", EXPECTED)
    return values
