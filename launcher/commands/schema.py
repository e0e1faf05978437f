"""The JSON schema of the manifests that the launcher takes, for editors, as pydantic generates it from the model.

https://json-schema.org/draft/2020-12. The launcher refuses each manifest that the schema refuses, and further ones:
JSON schema cannot say, for example, that every disk has a volume.
"""

import json
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema

from launcher.fields.objects import Object
from launcher.manifest.pools import VirtualMachineInstanceReplicaSet, VirtualMachinePool
from launcher.vm.spec import VirtualMachine, VirtualMachineInstance
from program.output import print_text

_KINDS = (VirtualMachine, VirtualMachineInstance, VirtualMachinePool, VirtualMachineInstanceReplicaSet)


def json_schema() -> dict[str, Any]:
    """Return the schema of the kinds of manifests, with each object below `$defs` by its name.

    The field `kind` says which kind's rules hold (`if`, `then`), so that a validator speaks of that kind alone; of a
    `oneOf` it would say that the manifest is none of the four.
    """
    _, schema = models_json_schema([(kind, "validation") for kind in _KINDS], schema_generator=_OfManifests)
    names = [kind.__name__ for kind in _KINDS]
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        "title": "a VM's manifest, as gpu-launcher takes it",
        "type": "object",
        "properties": {"kind": {"enum": names}},
        "required": ["kind"],
        "allOf": [
            {
                "if": {"properties": {"kind": {"const": name}}, "required": ["kind"]},
                "then": {"$ref": f"#/$defs/{name}"},
            }
            for name in names
        ],
        **schema,
    }


class _OfManifests(GenerateJsonSchema):
    """Pydantic's schemas, with the rules of launcher.fields.objects, and without titles of fields."""

    def default_schema(self, schema: Any) -> JsonSchemaValue:
        """Permit null and an empty text for a field that may be left out. Scalars have their default in the schema."""
        value = self.generate_inner(schema["schema"])
        described = {key: value.pop(key) for key in ("description",) if key in value}
        null, empty = {"type": "null"}, {"const": ""}
        choices = [choice for choice in value.get("anyOf", [value]) if choice != null]
        texts = [empty] if [choice.get("type") for choice in choices] == ["string"] else []
        default = schema.get("default")
        shown = {"default": default} if isinstance(default, str | int) and default != "" else {}
        return {"anyOf": [*choices, null, *texts], **described, **shown}

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        """Describe an object within another, which is a function there (launcher.fields.objects)."""
        kind = getattr(schema["function"]["function"], "__self__", None) if schema["type"] == "function-plain" else None
        if isinstance(kind, type) and issubclass(kind, Object):
            kind.model_rebuild()
            schema = kind.__pydantic_core_schema__
        return super().generate_inner(schema)

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Leave titles out: pydantic makes them of the fields' names."""
        return False


def schema() -> None:
    """Print the JSON schema of the manifests that are taken, for editors."""
    print_text(json.dumps(json_schema(), indent=2) + "\n")
