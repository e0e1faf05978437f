"""metadata.annotations as a field of the manifest: of an instance, and of a VirtualMachine."""

from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from launcher.guest import ROM_OF, SEATS_OF
from launcher.manifest.annotations import KNOWN, OURS, Annotations, read_annotations, refuse_unconverted
from launcher.manifest.quotation import shown
from launcher.selection.annotations import SELECT
from program.errors import Nonsense


def _read(value: Any) -> Annotations:
    if isinstance(value, dict):
        refuse_unconverted(value)
    return read_annotations(value)


def _read_of_vm(value: Any) -> Annotations:
    """Refuse ours: KubeVirt's controller gives an instance the annotations of the template, and none of the VM's."""
    if not isinstance(value, dict):
        raise Nonsense(f"found {shown(value)}", "expected a mapping")
    if names := [name for name in value if isinstance(name, str) and name.startswith(OURS)]:
        raise Nonsense(f"{shown(names[0])} is for the instance", "write it into spec.template.metadata.annotations")
    return Annotations()


#: The annotations of a VirtualMachine itself.
AnnotationsOfVM = Annotated[Annotations, PlainValidator(_read_of_vm, json_schema_input_type=dict[str, Any])]
ReadAnnotations = Annotated[
    Annotations,
    PlainValidator(_read),
    WithJsonSchema(
        {
            "type": "object",
            "properties": {
                **{name: {"enum": [*values, "", None]} for name, values in KNOWN.items()},
                **{
                    name: {"type": ["string", "null"], "contentMediaType": "application/json"}
                    for name in (SEATS_OF, ROM_OF)
                },
                SELECT: {"type": ["string", "null"]},
            },
        },
    ),
]
