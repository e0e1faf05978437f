"""Frozen dataclasses that are read from a manifest: what they look like is what is accepted.

The checking is pydantic-core's. What pydantic itself adds, the way from a class to a core schema, takes a third of the
time of all imports (docs/decisions/0006), and a manifest needs little of it: strict scalars, lists, mappings, nested
objects and a check here and there. Null is absence, as in Kubernetes, and an unknown field is an error.
"""

import difflib
import re
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, dataclass_transform, get_args, get_origin

from pydantic_core import CoreSchema, PydanticCustomError, SchemaValidator
from pydantic_core import core_schema as schema

T = TypeVar("T")


class Reads(NamedTuple):
    """Annotated[T, Reads(f)]: f makes the field's value from what stands in the manifest; ValueError refuses it."""

    read: Callable[[Any], Any]


class Checks(NamedTuple):
    """Annotated[T, Checks(f)]: f gets a T and returns it; ValueError refuses it."""

    check: Callable[[Any], Any]


@dataclass_transform(frozen_default=True, kw_only_default=True)
def model(cls: type[T]) -> type[T]:
    """A frozen dataclass whose fields are spelled as the manifest spells them; all others are refused."""
    return dataclass(frozen=True, kw_only=True)(cls)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def open_model(cls: type[T]) -> type[T]:
    """The same, for an object that others fill too: fields that are not ours are left alone."""
    cls.__open__ = True  # type: ignore[attr-defined]
    return model(cls)


def validator(cls: type) -> SchemaValidator:
    """Reads a mapping into `cls`; its ValidationError has the path of each field that is wrong."""
    return SchemaValidator(_object(cls))


def _object(cls: Any) -> CoreSchema:
    names = [field.name for field in fields(cls)]
    is_open = hasattr(cls, "__open__")
    checked = schema.dataclass_schema(
        cls,
        schema.dataclass_args_schema(
            cls.__name__, [_field(field) for field in fields(cls)], extra_behavior="ignore" if is_open else "forbid"
        ),
        names,
        post_init=hasattr(cls, "__post_init__"),
        frozen=True,
    )

    def known(value: Any) -> Any:
        if not isinstance(value, dict):
            raise PydanticCustomError("not_a_mapping", "expected a mapping")
        for name in () if is_open else value:
            if name not in names:
                raise PydanticCustomError("unknown_field", _hint(str(name), names), {"field": str(name)})
        return {name: found for name, found in value.items() if found is not None}

    return schema.no_info_before_validator_function(known, checked)


def _field(field: "Field[Any]") -> schema.DataclassField:
    # kw_only: a mapping has no order.
    if field.default is not MISSING:
        checked: CoreSchema = schema.with_default_schema(_value(field.type), default=field.default)
    elif field.default_factory is not MISSING:
        checked = schema.with_default_schema(_value(field.type), default_factory=field.default_factory)
    else:
        checked = _value(field.type)
    return schema.dataclass_field(field.name, checked, kw_only=True)


def _value(kind: Any) -> CoreSchema:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        inner, how = arguments
        if isinstance(how, Reads):
            return schema.no_info_plain_validator_function(how.read)
        return schema.no_info_after_validator_function(how.check, _value(inner))
    if origin in (Union, UnionType):
        # X | None: null never gets here, so what is there has to be an X.
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return _value(inner)
    if origin is Literal:
        return schema.literal_schema(list(arguments))
    if origin is tuple:
        return schema.tuple_schema([_value(arguments[0])], variadic_item_index=0)
    if origin is dict:
        return schema.dict_schema(_value(arguments[0]), _value(arguments[1]))
    if is_dataclass(kind):
        return _object(kind)
    return _SCALARS[kind]


def _text(value: str) -> str:
    # What XML cannot say at all (https://www.w3.org/TR/xml/#charsets); YAML can, as "\x01".
    if unspeakable := re.search("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", value):
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
    hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
    return f"not a field that gpu-launcher converts; {hint}"
