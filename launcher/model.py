"""Classes that are read from a manifest: what they look like is what is accepted.

The checking is pydantic-core's. What pydantic itself adds, the way from a class to a core schema, takes a third of the
time of all imports, and what a dataclass adds, code that is compiled for every class, takes 0.35 ms a class and there
are a hundred (docs/decisions/0006). A manifest needs little of either: strict scalars, lists, mappings, nested objects
and a check here and there. Null is absence, as in Kubernetes, and an unknown field is an error.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from inspect import get_annotations
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, dataclass_transform, get_args, get_origin
from uuid import UUID

from pydantic_core import CoreSchema, PydanticCustomError, SchemaValidator
from pydantic_core import core_schema as schema

T = TypeVar("T")


class Reads:
    """Annotated[T, Reads(f, json)]: f makes the field's value from what stands in the manifest; ValueError refuses it.

    `json` is the JSON schema of what f takes.
    """

    def __init__(self, read: Callable[[Any], Any], json: Mapping[str, Any]) -> None:
        self.read = read
        self.json = json


class Checks:
    """Annotated[T, Checks(f, json)]: f gets a T and returns it; ValueError refuses it. `json` adds to T's schema."""

    def __init__(self, check: Callable[[Any], Any], json: Mapping[str, Any]) -> None:
        self.check = check
        self.json = json


class Refused(NamedTuple):
    """Annotated[None, Refused(why)]: a field of KubeVirt's that is not converted: why, and what to do instead.

    Null, false, an empty text and an empty list say nothing and may stand there. An empty mapping says something.
    """

    why: str


class Ignored(NamedTuple):
    """Annotated[Any, Ignored(why)]: a field that the domain does not depend on, whatever is in it."""

    why: str


class PassedOn(NamedTuple):
    """Annotated[T, PassedOn(why)]: a T that is the pod's, word for word, and that the domain does not depend on."""

    why: str


class Below(ValueError):
    """A __post_init__ that refuses a field further below, by its path from there: Below("efi.secureBoot", "is ...")."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(problem)
        self.path = path


Fate = Refused | Ignored | PassedOn | None


class Field(NamedTuple):
    """One field of a model. `fate` is None for a field that is converted."""

    name: str
    kind: Any
    required: bool
    default: Any
    fate: Fate


_REQUIRED = object()


@dataclass_transform(frozen_default=True, kw_only_default=True)
def model(cls: type[T]) -> type[T]:
    """A frozen class whose fields are spelled as the manifest spells them; all others are refused."""
    found: dict[str, Field] = {}
    for base in reversed(cls.__mro__):
        annotations: dict[str, Any] = get_annotations(base)
        for name, kind in annotations.items():
            default = getattr(cls, name, _REQUIRED)
            marks = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
            fate = next((mark for mark in marks if isinstance(mark, Refused | Ignored | PassedOn)), None)
            found[name] = Field(name, kind, default is _REQUIRED, default, fate)
    for name, method in _METHODS.items():
        setattr(cls, name, method)
    cls.__fields__ = tuple(found.values())  # type: ignore[attr-defined]
    return cls


@dataclass_transform(frozen_default=True, kw_only_default=True)
def open_model(cls: type[T]) -> type[T]:
    """The same, for an object that others fill too: fields that are not ours are left alone."""
    cls.__open__ = True  # type: ignore[attr-defined]
    return model(cls)


def is_model(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "__fields__")


def is_open(cls: type) -> bool:
    return hasattr(cls, "__open__")


def fields(cls: Any) -> tuple[Field, ...]:
    """A model's fields, its bases' first, in the order in which they are written."""
    found: tuple[Field, ...] = cls.__fields__
    return found


def validator(cls: type) -> SchemaValidator:
    """Reads a mapping into `cls`; its ValidationError has the path of each field that is wrong."""
    return SchemaValidator(_object(cls))


def inside(kind: Any) -> Any:
    """The type within Annotated, `| None` and tuple[..., ...]: the model or scalar that a field is made of."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Annotated, tuple):
        return inside(arguments[0])
    if origin in (Union, UnionType):
        return inside(next(argument for argument in arguments if argument is not type(None)))
    return kind


def _init(self: Any, **values: Any) -> None:
    for field in fields(type(self)):
        if field.name not in values and field.required:
            raise TypeError(f"{type(self).__name__} needs {field.name}")
        self.__dict__[field.name] = values.pop(field.name, field.default)
    if values:
        raise TypeError(f"{type(self).__name__} has no {', '.join(values)}")
    if hasattr(self, "__post_init__"):
        self.__post_init__()


def _equal(self: Any, other: object) -> bool:
    return type(self) is type(other) and self.__dict__ == other.__dict__


def _shown(self: Any) -> str:
    said = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
    return f"{type(self).__name__}({said})"


def _frozen(self: Any, name: str, value: Any = None) -> None:
    raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be changed")


_METHODS: Mapping[str, Any] = {
    "__init__": _init,
    "__eq__": _equal,
    "__repr__": _shown,
    "__setattr__": _frozen,
    "__delattr__": _frozen,
    "__hash__": None,
}


def _object(cls: Any) -> CoreSchema:
    names = dict.fromkeys(field.name for field in fields(cls)).keys()
    texts = {field.name for field in fields(cls) if not field.required and is_text(field)}
    checked = schema.dataclass_schema(
        cls,
        schema.dataclass_args_schema(
            cls.__name__,
            [_field(field) for field in fields(cls)],
            extra_behavior="ignore" if is_open(cls) else "forbid",
        ),
        list(names),
        post_init=hasattr(cls, "__post_init__"),
        frozen=True,
    )

    def known(value: Any) -> Any:
        if not isinstance(value, dict):
            raise PydanticCustomError("not_a_mapping", "expected a mapping")
        if not (is_open(cls) or names >= value.keys()):
            name = next(name for name in value if name not in names)
            raise PydanticCustomError("unknown_field", _hint(str(name), list(names)), {"field": str(name)})
        said = value.values()
        if None in said or "" in said:
            return {
                name: found
                for name, found in value.items()
                if found is not None and not (found == "" and name in texts)
            }
        return value

    return schema.no_info_before_validator_function(known, checked)


def is_text(field: Field) -> bool:
    """Whether an empty text is absence in it, as in Go, in which charts are written."""
    kind = inside(field.kind)
    return kind in (str, UUID) or get_origin(kind) is Literal or isinstance(field.fate, Refused)


def _field(field: Field) -> schema.DataclassField:
    checked = _value(field.kind)
    if not field.required:
        # As a factory, since pydantic-core copies a default that has no hash at every use.
        checked = schema.with_default_schema(checked, default_factory=lambda: field.default)
    # kw_only: a mapping has no order.
    return schema.dataclass_field(field.name, checked, kw_only=True)


def _value(kind: Any) -> CoreSchema:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        inner, how = arguments
        match how:
            case Reads():
                return schema.no_info_plain_validator_function(how.read)
            case Refused():
                return schema.no_info_plain_validator_function(_refusing(how.why))
            case Ignored():
                return schema.any_schema()
            case PassedOn():
                return _value(inner)
            case _:
                return schema.no_info_after_validator_function(how.check, _value(inner))
    if origin in (Union, UnionType):
        # X | None: null never gets here, so what is there has to be an X.
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return _value(inner)
    if origin is Literal:
        return schema.literal_schema(list(arguments))
    if origin is tuple:
        return schema.tuple_schema([_value(arguments[0])], variadic_item_index=0)
    if origin is Mapping:
        return schema.dict_schema(_value(arguments[0]), _value(arguments[1]))
    if is_model(kind):
        return _object(kind)
    return _SCALARS[kind]


def _refusing(why: str) -> Callable[[Any], None]:
    def refuse(value: Any) -> None:
        if value is not False and value != []:
            raise ValueError(f"is not converted: {why}")

    return refuse


# What XML cannot say at all (https://www.w3.org/TR/xml/#charsets); YAML can, as "\x01". Written as all but what XML
# can say, it takes twenty times as long to compile.
_UNSPEAKABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def _text(value: str) -> str:
    if unspeakable := _UNSPEAKABLE.search(value):
        raise ValueError(f"has the character {unspeakable[0]!r}, which XML cannot hold; expected text")
    return value


_SCALARS: dict[Any, CoreSchema] = {
    str: schema.no_info_after_validator_function(_text, schema.str_schema(strict=True)),
    int: schema.int_schema(strict=True),
    bool: schema.bool_schema(strict=True),
    Any: schema.any_schema(),
}


def _hint(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"not a field that gpu-launcher knows; did you mean {near[0]}?"
    return f"not a field that gpu-launcher knows; known here: {', '.join(known) or 'nothing'}"
