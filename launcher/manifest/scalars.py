"""The words and numbers that manifests are made of, each with its check and its JSON schema."""

import re
import reprlib
from collections.abc import Iterable
from functools import cache
from typing import Annotated, Any, TypeVar
from uuid import UUID

from launcher.model import Checks, Reads
from launcher.quantity import Amount, parse_amount

T = TypeVar("T")


@cache  # at the first use: a start needs few of them
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


def matching(pattern: str, expected: str) -> Checks:
    """A check that the whole text matches; `expected` ends the error: "'x' is ...; expected ..."."""

    def check(value: str) -> str:
        if not _compiled(pattern).fullmatch(value):
            raise ValueError(f"{shown(value)} {expected}")
        return value

    return Checks(check, {"pattern": f"^(?:{pattern})$"})


def between(least: int, most: int) -> Checks:
    """A check that a number lies in a range, both ends included."""

    def check(value: int) -> int:
        if not least <= value <= most:
            raise ValueError(f"{value}; expected {least} to {most}")
        return value

    return Checks(check, {"minimum": least, "maximum": most})


def quantity(value: Any) -> int:
    """A Kubernetes quantity in whole units; ValueError for what is none."""
    return amount(value).whole


def amount(value: Any) -> Amount:
    """A Kubernetes quantity; ValueError for what is none."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"expected a quantity like 8Gi, found {shown(value)}")  # noqa: TRY004 (pydantic-core's way)
    return parse_amount(value)


def _uuid(value: Any) -> UUID:
    try:
        return UUID(value)
    except (ValueError, AttributeError, TypeError):
        raise ValueError(f"{shown(value)} is not a UUID") from None


def _path_in_image(value: str) -> str:
    if not re.fullmatch(r"(/[^/\x00-\x1f]+)+", value) or ".." in value.split("/"):
        raise ValueError(f"{value!r}; expected an absolute path of a file in the image, like /boot/vmlinuz")
    return value


_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxstring = _SHORT.maxother = 60


def _path_on_node(value: str) -> str:
    if not re.fullmatch(r"(/[^/\x00-\x1f]+)+", value) or {".", ".."} & set(value.split("/")):
        raise ValueError(f"{value!r}; expected an absolute path of a file on the node, like /data/disk.img")
    return value


def first_twice(values: Iterable[T]) -> T | None:
    """The first value that is there for the second time."""
    seen: set[T] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None


def shown(value: Any) -> str:
    """A value of the manifest's for an error line: short, whatever it is."""
    try:
        text = _SHORT.repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:60]}..."


QUANTITY = {"type": ["string", "number"]}  # as JSON schema

Count = Annotated[int, between(0, 2**32 - 1)]
Quantity = Annotated[int, Reads(quantity, QUANTITY)]
UUIDText = Annotated[UUID, Reads(_uuid, {"type": "string", "format": "uuid"})]
DNSName = Annotated[
    str,
    matching(
        "[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?",
        "is no Kubernetes name; expected lower-case letters, digits, - and .",
    ),
]
DNSLabel = Annotated[
    str,
    matching(
        "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?",
        "is no DNS label; expected at most 63 lower-case letters, digits and -, the first and last not -",
    ),
]
# libvirt drops an alias with any other character in it, and doesn't say so.
AliasName = Annotated[
    str, matching("[A-Za-z0-9_-]+", "cannot be part of a libvirt alias; expected letters, digits, - and _")
]
PathInImage = Annotated[str, Checks(_path_in_image, {"pattern": "^/"})]
PathOnNode = Annotated[str, Checks(_path_on_node, {"pattern": "^/"})]
