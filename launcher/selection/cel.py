"""CEL over Kubernetes' `device`, by Google's own implementation: the only module that imports it.

As the scheduler has it (k8s.io/dynamic-resource-allocation/cel): `device.driver`, `device.attributes[DOMAIN].NAME`,
`device.capacity[DOMAIN].NAME`, the standard library, optional types, cel.bind and the functions of strings. A domain
of which the device has nothing is an empty map there, and here. What Kubernetes adds by itself is missing here:
versions (semver), quantities, IP addresses, sets, its own functions of lists and regular expressions.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from launcher.selection.cluster import PublishedDevice
from program.errors import Refusal, UserError

try:
    from cel_expr_python import cel
    from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings
except ImportError as error:
    raise Refusal(
        "cel-expr-python", "this Python package is not there, and fit needs it", "pip install 'gpu-launcher[fit]'"
    ) from error

_DOMAINS = re.compile(r"""\b(?:attributes|capacity)\s*\[\s*\??\s*(["'])([^"'\\]+)\1\s*\]""")
_LONGEST = 200  # characters of what the compiler says


class Unknowable(Exception):
    """An expression has no answer for a device: what CEL says of it."""


class Expression:
    """A CEL expression, compiled; UserError if it can't be."""

    def __init__(self, text: str, subject: str) -> None:
        try:
            self._compiled = _environment().compile(text)
        except Exception as error:
            raise UserError(
                subject,
                f"{_shown(text)} is no CEL that fit knows: {_first(error)}",
                "expected an expression over device.driver, device.attributes and device.capacity, with what "
                "docs/choosing.md lists",
            ) from error
        if self._compiled.return_type() not in (cel.Type.BOOL, cel.Type.DYN):
            name = self._compiled.return_type().name()
            raise UserError(subject, f"{_shown(text)} is of type {name}", "expected a bool")
        self._domains = frozenset(match[2] for match in _DOMAINS.finditer(text))

    def holds(self, device: PublishedDevice) -> bool:
        """Return whether it is true of the device; Unknowable where it is neither true nor false: the scheduler gives
        up on the whole pod there."""
        data = {
            "device.driver": device.id.driver,
            "device.attributes": self._filled(device.attributes),
            "device.capacity": self._filled(device.capacity),
        }
        try:
            value = self._compiled.eval(data=data)
        except RuntimeError as error:  # it has looped as often as anything may
            raise Unknowable(_first(error)) from error
        if value.type() != cel.Type.BOOL:
            raise Unknowable(_first(value.value()))
        return bool(value.value())

    def _filled(self, by_domain: Mapping[str, Any]) -> Mapping[str, Any]:
        missing = self._domains - by_domain.keys()
        return {**by_domain, **{domain: {} for domain in missing}} if missing else by_domain


@cache
def _environment() -> Any:
    kind = cel.Type
    by_domain = kind.Map(kind.STRING, kind.Map(kind.STRING, kind.DYN))
    variables = {"device.driver": kind.STRING, "device.attributes": by_domain, "device.capacity": by_domain}
    extensions = [ext_optional.ExtOptional(), ext_bindings.ExtBindings(), ext_strings.ExtStrings()]
    return cel.NewEnv(variables=variables, extensions=extensions)


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= _LONGEST else f"{line[:_LONGEST]}...")


def _first(error: Any) -> str:
    """Return the first line of what CEL says, without its codes."""
    line = str(error).strip().split("\n")[0]
    return re.sub(r"^(INVALID_ARGUMENT: |ERROR: |[A-Z_]+: )*(<input>:)?", "", line)[:_LONGEST]
