"""The texts and numbers in manifests, each with its check and its JSON schema."""

import re
from collections.abc import Iterable
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar
from uuid import UUID

from pydantic import AfterValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, PlainValidator
from pydantic.json_schema import JsonSchemaValue

from launcher.fields.quantity import Amount, parse_amount
from program.errors import Nonsense
from program.problem import excerpt

T = TypeVar("T")


# What XML cannot say at all (https://www.w3.org/TR/xml/#charsets); YAML can, as "\x01". Written as all but what XML
# can say, it takes twenty times as long to compile.
_UNSPEAKABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def _speakable(value: str) -> str:
    if unspeakable := _UNSPEAKABLE.search(value):
        raise Nonsense(f"has the character {unspeakable[0]!r}, which XML cannot hold", "expected text")
    return value


@cache  # at the first use: a start needs few of them
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


class Matching(NamedTuple):
    """Annotated[Text, Matching(pattern, wrong, fix)]: the whole text has to match; an error is the text, then `wrong`.

    Pydantic's own pattern would show the pattern instead.
    """

    pattern: str
    wrong: str
    fix: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return AfterValidator(self._check).__get_pydantic_core_schema__(source, handler)

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(core_schema), "pattern": f"^(?:{self.pattern})$"}

    def _check(self, value: str) -> str:
        if not _compiled(self.pattern).fullmatch(value):
            raise Nonsense(f"{excerpt(value)} {self.wrong}", self.fix)
        return value


def _amount(value: Any) -> Amount:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Nonsense(f"found {excerpt(value)}", "expected a quantity like 8Gi")
    return parse_amount(value)


def _uuid(value: Any) -> UUID:
    try:
        return UUID(value)
    except (ValueError, AttributeError, TypeError):
        raise Nonsense(
            f"{excerpt(value)} is not a UUID", "expected one like 6f4f1d70-2f4c-5d51-9b5e-3e7d54c1a2b0"
        ) from None


def _path_in_image(value: str) -> str:
    if not re.fullmatch(r"(/[^/\x00-\x1f]+)+", value) or ".." in value.split("/"):
        raise Nonsense(f"{value!r}", "expected an absolute path of a file in the image, like /boot/vmlinuz")
    return value


# Directories of a node that a guest's disk, of which the guest writes each byte, has no business in: those themselves,
# and those with all below them.
_NOT_IN = ("/", "/var", "/var/lib")
_NOT_BELOW = tuple(
    f"/{name}"
    for name in (
        *("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "root", "run", "sbin", "sys", "usr"),
        *("var/lib/kubelet", "var/run", "var/spool"),
    )
)


def _path_on_node(value: str) -> str:
    if not re.fullmatch(r"(/[^/\x00-\x1f]+)+", value) or {".", ".."} & set(value.split("/")):
        raise Nonsense(f"{value!r}", "expected an absolute path of a file on the node, like /data/disk.img")
    parent = value.rpartition("/")[0] or "/"
    if parent in _NOT_IN or any(f"{parent}/".startswith(f"{system}/") for system in _NOT_BELOW):
        wrong = f"{value!r} is in {parent}, which is the node's own"
        raise Nonsense(wrong, "expected a directory for disks, like /data")
    return value


def _path_in_pod(value: str) -> str:
    path = value.rstrip("/")
    if not re.fullmatch(r"(/[^/\x00-\x1f]+)+", path) or {".", ".."} & set(path.split("/")):
        raise Nonsense(f"{value!r}", "expected an absolute path of a directory in the container, like /srv/data")
    return path


def first_twice(values: Iterable[T]) -> T | None:
    """Return the first repeated value; None if there is none."""
    seen: set[T] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None


#: Every text of a manifest: each may become a part of the domain.
Text = Annotated[str, AfterValidator(_speakable)]
Count = Annotated[int, Field(ge=0, lt=2**32)]
#: A Kubernetes quantity as it is written, and in whole units.
ExactQuantity = Annotated[Amount, PlainValidator(_amount, json_schema_input_type=str | float)]
Quantity = Annotated[int, PlainValidator(lambda value: _amount(value).whole, json_schema_input_type=str | float)]
UUIDText = Annotated[UUID, PlainValidator(_uuid, json_schema_input_type=UUID)]
#: Of most objects: a DNS subdomain (IsDNS1123Subdomain, kubernetes/apimachinery pkg/util/validation).
DNSName = Annotated[
    Text,
    Matching(
        r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
        "is no Kubernetes name",
        "expected at most 253 lower-case letters, digits, - and ., a letter or digit at both ends and beside each .",
    ),
]
DNSLabel = Annotated[
    Text,
    Matching(
        "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?",
        "is no DNS label",
        "expected at most 63 lower-case letters, digits and -, the first and last not -",
    ),
]
# libvirt drops an alias with any other character in it, and doesn't say so.
AliasName = Annotated[
    Text, Matching("[A-Za-z0-9_-]+", "cannot be part of a libvirt alias", "expected letters, digits, - and _")
]
PathInImage = Annotated[Text, AfterValidator(_path_in_image), Field(json_schema_extra={"pattern": "^/"})]
PathInPod = Annotated[Text, AfterValidator(_path_in_pod), Field(json_schema_extra={"pattern": "^/"})]
PathOnNode = Annotated[Text, AfterValidator(_path_on_node), Field(json_schema_extra={"pattern": "^/"})]
