"""CEL over Kubernetes' `device`, by Google's own implementation, which no other module imports.

As in the scheduler (k8s.io/dynamic-resource-allocation/cel): `device.driver`, `device.attributes[DOMAIN].NAME`,
`device.capacity[DOMAIN].NAME`, the standard library, optional types, cel.bind and the functions of strings. A domain
without attributes of the device is an empty map. Of Kubernetes' own additions only quantities are supported
(k8s.io/apiserver, pkg/cel/library/quantity.go); versions (semver), IP addresses, sets, functions of lists and regular
expressions are not.
"""

import re
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from functools import cache, lru_cache
from typing import Any

from launcher.choosing.cluster import PublishedDevice
from launcher.choosing.nodes import Amounts
from launcher.fields.quantity import parse_exact
from program.errors import Nonsense, Refusal, UserError

_DOMAINS = re.compile(r"""\b(?:attributes|capacity)\s*\[\s*\??\s*(["'])([^"'\\]+)\1\s*\]""")
#: A field that is read by name, `device.attributes["gpu-launcher.dev"].?model`; a call, `.exists(...)`, is none.
_READ = re.compile(r"""\bdevice\.(attributes|capacity)\["([^"\\]+)"\]\.\??([A-Za-z_]\w*+)(?!\s*\()""", re.ASCII)
_QUANTITY = "kubernetes.Quantity"
_LONGEST = 200  # characters of what the compiler says
_MOST = 1 << 26  # bytes that an evaluation may take: texts of texts (nested cel.bind) double with each


class Unknowable(Exception):
    """An expression has no answer for a device; the text is CEL's."""


class Expression:
    """A compiled CEL expression; UserError if it cannot be compiled, or is no bool.

    Thousands of devices differ in few of the values that expressions read. So an answer is cached by the values that it
    depends on, if the expression's text shows which these are.
    """

    def __init__(self, text: str, subject: str) -> None:
        environment, kinds = _environment()
        try:
            self._compiled = environment.compile(text)
        except Exception as error:
            raise UserError(
                subject,
                f"{shown_line(text)} is no CEL that fit knows: {_first(error)}",
                "expected an expression over device.driver, device.attributes and device.capacity, with what "
                "docs/choosing.md lists",
            ) from error
        if self._compiled.return_type() not in (kinds.BOOL, kinds.DYN):
            name = self._compiled.return_type().name()
            raise UserError(subject, f"{shown_line(text)} is of type {name}", "expected a bool")
        self._bool = kinds.BOOL
        self._nothing: dict[str, Any] = {match[2]: {} for match in _DOMAINS.finditer(text)}
        self._reads = _reads(text)
        self._answers: dict[tuple[Any, ...], bool | str] = {}  # a text: why there is none

    def holds(self, device: PublishedDevice) -> bool:
        """Return whether the expression is true of the device; raise Unknowable if it has no answer: the scheduler then
        gives up on the whole pod."""
        if self._reads is None:
            return self._evaluated(device)
        key = (device.id.driver, *(_read(device, *each) for each in self._reads))
        answer = self._answers.get(key)
        if answer is None:
            try:
                answer = self._evaluated(device)
            except Unknowable as error:
                answer = str(error)
            self._answers[key] = answer
        if isinstance(answer, str):
            raise Unknowable(answer)
        return answer

    def _evaluated(self, device: PublishedDevice) -> bool:
        data = {
            "device.driver": device.id.driver,
            "device.attributes": {**self._nothing, **device.attributes},
            "device.capacity": {**self._nothing, **_messages(device.capacity)},
        }
        try:
            with _bounded_memory():
                value = self._compiled.eval(data=data)
        except MemoryError as error:
            raise Unknowable(f"it takes more than {_MOST >> 20} MiB of memory") from error
        except RuntimeError as error:  # it has looped as often as CEL permits
            raise Unknowable(_first(error)) from error
        if value.type() != self._bool:
            raise Unknowable(_first(value.value()))
        return bool(value.value())


def _reads(text: str) -> tuple[tuple[str, str, str], ...] | None:
    """Return the map, the domain and the name of each value of a device, except the driver, that an expression can
    read; None if it may read others: by `device.attributes` without a name, or by a call that a comment hides."""
    if "//" in text or re.search("attributes|capacity", _READ.sub("", text)):
        return None
    return tuple(dict.fromkeys((match[1], match[2], match[3]) for match in _READ.finditer(text)))


def _read(device: PublishedDevice, of: str, domain: str, name: str) -> tuple[type, Any]:
    """Return a value with its type, which tells 1 from True."""
    values: Mapping[str, Mapping[str, Any]] = device.attributes if of == "attributes" else device.capacity
    value = values.get(domain, {}).get(name)
    return (list, repr(value)) if isinstance(value, list) else (type(value), value)


@cache
def _environment() -> tuple[Any, Any]:
    """Return the environment of all expressions, and CEL's types. Importing CEL takes as long as all other imports of a
    command, and a VM without devices by DRA does not need it: so it is imported here."""
    try:
        from cel_expr_python import cel
        from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings
    except ImportError as error:
        raise Refusal(
            "cel-expr-python", "this Python package is not there, and fit needs it", "pip install 'gpu-launcher[fit]'"
        ) from error
    kind = cel.Type
    quantity = kind(_QUANTITY)

    def by_domain(value: Any) -> Any:
        return kind.Map(kind.STRING, kind.Map(kind.STRING, value))

    variables = {
        "device.driver": kind.STRING,
        "device.attributes": by_domain(kind.DYN),
        "device.capacity": by_domain(quantity),
    }
    extensions = [ext_optional.ExtOptional(), ext_bindings.ExtBindings(), ext_strings.ExtStrings(), _quantities(cel)]
    return cel.NewEnv(descriptor_pool=_pool(), variables=variables, extensions=extensions), kind


def _quantities(cel: Any) -> Any:
    """Return the extension with Kubernetes' functions of quantities."""
    kind = cel.Type
    quantity = kind(_QUANTITY)
    with_another = [quantity, quantity]
    overloads: dict[str, list[tuple[Any, list[Any], Callable[..., Any]]]] = {
        "quantity": [(quantity, [kind.STRING], lambda text: _message(parse_exact(text)))],
        "isQuantity": [(kind.BOOL, [kind.STRING], _is_quantity)],
        "isGreaterThan": [(kind.BOOL, with_another, lambda one, other: _exact(one) > _exact(other))],
        "isLessThan": [(kind.BOOL, with_another, lambda one, other: _exact(one) < _exact(other))],
        "compareTo": [(kind.INT, with_another, lambda one, other: int(_exact(one).compare(_exact(other))))],
        "sign": [(kind.INT, [quantity], lambda one: int(_exact(one).compare(0)))],
        "isInteger": [(kind.BOOL, [quantity], lambda one: _exact(one) == int(_exact(one)))],
        "asInteger": [(kind.INT, [quantity], _integer)],
        "asApproximateFloat": [(kind.DOUBLE, [quantity], lambda one: float(_exact(one)))],
        "add": [
            (quantity, with_another, lambda one, other: _message(_exact(one) + _exact(other))),
            (quantity, [quantity, kind.INT], lambda one, number: _message(_exact(one) + number)),
        ],
        "sub": [
            (quantity, with_another, lambda one, other: _message(_exact(one) - _exact(other))),
            (quantity, [quantity, kind.INT], lambda one, number: _message(_exact(one) - number)),
        ],
    }
    return cel.CelExtension(
        _QUANTITY,
        [
            cel.FunctionDecl(
                name,
                [
                    cel.Overload(f"{name}_{number}", returns, parameters, parameters[0] == quantity, does)
                    for number, (returns, parameters, does) in enumerate(its)
                ],
            )
            for name, its in overloads.items()
        ],
    )


@cache
def _pool() -> Any:
    """Return the descriptors of the messages that stand for quantities: CEL's implementation has no other user-defined
    types."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    package, _, name = _QUANTITY.rpartition(".")
    file = descriptor_pb2.FileDescriptorProto(name="quantity.proto", package=package, syntax="proto3")
    file.message_type.add(name=name).field.add(
        name="exact",
        number=1,
        type=descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
        label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


@cache
def _message_class() -> Any:
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(_QUANTITY))


@lru_cache(4096)
def _message(exact: Decimal) -> Any:
    """Return a quantity as CEL's message; equal quantities are equal messages."""
    return _message_class()(exact=f"{(exact + 0).normalize():f}")


def _messages(capacity: Mapping[str, Amounts]) -> dict[str, dict[str, Any]]:
    return {domain: {name: _message(exact) for name, exact in its.items()} for domain, its in capacity.items()}


def _exact(message: Any) -> Decimal:
    return Decimal(message.exact)


def _is_quantity(text: str) -> bool:
    try:
        parse_exact(text)
    except Nonsense:
        return False
    return True


def _integer(message: Any) -> int:
    exact = _exact(message)
    if exact != int(exact):
        raise Nonsense(f"{message.exact} is no integer", "ask isInteger() first")
    return int(exact)


def shown_line(text: str) -> str:
    """Return an expression on one line, in quotes, cut if it is long."""
    line = " ".join(text.split())
    return repr(line if len(line) <= _LONGEST else f"{line[:_LONGEST]}...")


def _first(error: Any) -> str:
    """Return the first line of CEL's message, without its codes."""
    line = str(error).strip().split("\n")[0]
    return re.sub(r"^(INVALID_ARGUMENT: |ERROR: |[A-Z_]+: )*(<input>:)?", "", line)[:_LONGEST]


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """Limit this process to _MOST bytes more than it has now, if the kernel tells how many it has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 (for each selector and card)
            most = int(file.read().split()[0]) * resource.getpagesize() + _MOST
    except OSError:
        yield
        return
    if before[0] != resource.RLIM_INFINITY:
        most = min(most, before[0])
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
