"""The parts of Kubernetes' published OpenAPI schema that a VM's objects are of, as JSON schemas: those that are
applied, and those that the API server answers with.

`python -m tests.openapi SWAGGER.json v1.36.3` cuts them out anew and writes both files of fixtures/kubernetes;
SWAGGER.json is api/openapi-spec/swagger.json of that version of the Go module k8s.io/kubernetes (Apache-2.0).
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.processes import FIXTURES

CUT = FIXTURES / "kubernetes" / "openapi.json"
#: The definition of each kind.
KINDS = {
    **{kind: f"io.k8s.api.core.v1.{kind}" for kind in ("ConfigMap", "PersistentVolumeClaim", "Pod")},
    **{kind: f"io.k8s.api.apps.v1.{kind}" for kind in ("Deployment", "StatefulSet")},
    "Job": "io.k8s.api.batch.v1.Job",
    "PodDisruptionBudget": "io.k8s.api.policy.v1.PodDisruptionBudget",
    "ResourceClaimTemplate": "io.k8s.api.resource.v1.ResourceClaimTemplate",
}
#: What the API server answers with.
ANSWERS = FIXTURES / "kubernetes" / "answers.json"
ANSWERED = {
    **{kind: f"io.k8s.api.core.v1.{kind}" for kind in ("ConfigMap", "Event", "Pod")},
    **{kind: f"io.k8s.api.apps.v1.{kind}" for kind in ("Deployment", "StatefulSet")},
    "Job": "io.k8s.api.batch.v1.Job",
}
_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
_OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_REF = "#/definitions/"


def cut_out(swagger: Any, version: str, kinds: Mapping[str, str], *, answered: bool = False) -> Any:
    """What the kinds reach, without descriptions, and, unless it is `answered`, without what only a server writes.
    Unknown fields are refused."""
    definitions = swagger["definitions"]
    found: dict[str, Any] = {}
    left = list(kinds.values())
    while left:
        name = left.pop()
        if name not in found:
            found[name] = _definition(name, definitions[name], answered=answered)
            left += _references(found[name])
    return {
        "$comment": f"made by tests/openapi.py, of the OpenAPI schema of k8s.io/kubernetes {version}, Apache-2.0",
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": dict(sorted(found.items())),
    }


def _definition(name: str, said: Any, *, answered: bool) -> Any:
    # The schema says "string" of both; what these formats take is in their descriptions.
    if name == _INT_OR_STRING:
        return {"type": ["integer", "string"]}
    if name == _QUANTITY:
        return {"type": ["number", "string"]}
    properties = {
        field: _bare(value)
        for field, value in said.get("properties", {}).items()
        if answered
        or (
            not (name in KINDS.values() and field == "status")
            and not (name == _OBJECT_META and field == "managedFields")
        )
    }
    closed = {"properties": properties, "additionalProperties": False} if properties else {}
    return {**_bare({key: value for key, value in said.items() if key != "properties"}), **closed}


def _bare(value: Any) -> Any:
    match value:
        case dict():
            return {key: _bare(found) for key, found in value.items() if key != "description" and key[:2] != "x-"}
        case list():
            return [_bare(found) for found in value]
        case _:
            return value


def _references(value: Any) -> Iterator[str]:
    match value:
        case {"$ref": str(reference)}:
            yield reference.removeprefix(_REF)
        case dict():
            for found in value.values():
                yield from _references(found)
        case list():
            for found in value:
                yield from _references(found)


if __name__ == "__main__":
    CUT.parent.mkdir(exist_ok=True)
    whole = json.loads(Path(sys.argv[1]).read_text())
    CUT.write_text(json.dumps(cut_out(whole, sys.argv[2], KINDS), indent=1) + "\n")
    ANSWERS.write_text(json.dumps(cut_out(whole, sys.argv[2], ANSWERED, answered=True), indent=1) + "\n")
