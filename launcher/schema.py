"""The JSON schema of the manifests that the launcher takes, for editors: the model, said in another language.

https://json-schema.org/draft/2020-12. What JSON schema cannot say, like that every disk has a volume, is not in it: a
manifest that it refuses is refused by the launcher, and not always the reverse.
"""

from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from launcher.manifest.spec import VirtualMachine, VirtualMachineInstance
from launcher.model import Checks, Field, Ignored, PassedOn, Reads, Refused, fields, is_model, is_open, is_text

Schema = dict[str, Any]


def json_schema() -> Schema:
    """A VirtualMachineInstance or a VirtualMachine; every model once, below `$defs`, by its name."""
    defs: dict[str, Schema] = {}
    kinds = [_schema(kind, defs) for kind in (VirtualMachineInstance, VirtualMachine)]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "a VirtualMachineInstance or VirtualMachine, as gpu-launcher takes it",
        "oneOf": kinds,
        "$defs": dict(sorted(defs.items())),
    }


def _schema(kind: Any, defs: dict[str, Schema]) -> Schema:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        inner, how = arguments
        match how:
            case Reads():
                return dict(how.json)
            case Checks():
                return {**_schema(inner, defs), **how.json}
            case Refused():
                return {"enum": [False, []], "description": f"not converted: {how.why}"}
            case Ignored():
                return {"description": f"ignored: {how.why}"}
            case PassedOn():
                return {**_schema(inner, defs), "description": f"passed on: {how.why}"}
    if origin in (Union, UnionType):
        return _schema(next(argument for argument in arguments if argument is not type(None)), defs)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return {"type": "array", "items": _schema(arguments[0], defs)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _schema(arguments[1], defs)}
    if is_model(kind):
        return _model(kind, defs)
    return dict(_SCALARS[kind])


def _model(cls: Any, defs: dict[str, Schema]) -> Schema:
    name = cls.__name__
    if name not in defs:
        defs[name] = {}  # a model may contain itself
        properties = {field.name: _property(field, defs) for field in fields(cls)}
        required = [field.name for field in fields(cls) if field.required]
        defs[name] = {
            "type": "object",
            "properties": properties,
            **({"required": required} if required else {}),
            **({} if is_open(cls) else {"additionalProperties": False}),
        }
    return {"$ref": f"#/$defs/{name}"}


def _property(field: Field, defs: dict[str, Schema]) -> Schema:
    schema = _schema(field.kind, defs)
    if field.required or isinstance(field.fate, Ignored):
        return schema
    empty: list[Schema] = [{"const": ""}] if is_text(field) else []
    return {"anyOf": [schema, {"type": "null"}, *empty]}


_SCALARS: Mapping[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    Any: {},
}
