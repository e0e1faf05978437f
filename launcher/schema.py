"""The JSON schema of the manifests that the launcher takes, for editors: pydantic's, of the model.

https://json-schema.org/draft/2020-12. What JSON schema cannot say, like that every disk has a volume, is not in it: a
manifest that it refuses is refused by the launcher, and not always the reverse.
"""

from typing import Annotated, Any

from pydantic import Field, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from launcher.manifest.spec import VirtualMachine, VirtualMachineInstance


def json_schema() -> dict[str, Any]:
    """A VirtualMachineInstance or a VirtualMachine; every object once, below `$defs`, by its name."""
    kinds: TypeAdapter[Any] = TypeAdapter(
        Annotated[VirtualMachineInstance | VirtualMachine, Field(discriminator="kind")]
    )
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        "title": "a VirtualMachineInstance or VirtualMachine, as gpu-launcher takes it",
        **kinds.json_schema(schema_generator=_OfManifests),
    }


class _OfManifests(GenerateJsonSchema):
    """Pydantic's schemas with what launcher.manifest.objects adds, and without what a reader has no use for."""

    def default_schema(self, schema: Any) -> JsonSchemaValue:
        """What may be left out may also be null, or an empty text. A default is told where it is a scalar."""
        value = self.generate_inner(schema["schema"])
        described = {key: value.pop(key) for key in ("description",) if key in value}
        null, empty = {"type": "null"}, {"const": ""}
        choices = [choice for choice in value.get("anyOf", [value]) if choice != null]
        texts = [empty] if [choice.get("type") for choice in choices] == ["string"] else []
        default = schema.get("default")
        told = {"default": default} if isinstance(default, str | int) and default != "" else {}
        return {"anyOf": [*choices, null, *texts], **described, **told}

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Fields have their names, and need no titles that are made of them."""
        return False
