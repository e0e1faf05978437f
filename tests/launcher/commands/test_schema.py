"""The JSON schema against the manifests that are taken and those that are not."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator, meta

from launcher.commands.schema import json_schema
from launcher.manifest.inputs import read_input
from launcher.vm.annotations import NAMES
from launcher.vm.cards.annotations import Word
from program.document import read_document
from tests.conftest import Command
from tests.launcher.cases import VMS
from tests.launcher.manifest.test_pools import pool, replica_set

SCHEMA = json_schema()


def faults(manifest: Any) -> list[str]:
    """Where and in which keyword a manifest differs from the schema, the deepest first."""
    return [error.message for error in Draft202012Validator(SCHEMA).iter_errors(manifest)]


def test_it_is_a_json_schema() -> None:
    meta.validate(SCHEMA)


@pytest.mark.parametrize("vm", sorted(VMS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_manifest_that_is_rendered_is_valid(vm: Path) -> None:
    for manifest in read_input(vm).vms:
        assert faults(manifest) == []


@pytest.mark.parametrize(
    "domain",
    [
        "{gpu: []}",
        "{cpu: {cores: two}}",
        "{cpu: {cores: -1}}",
        "{memory: {guest: [1]}}",
        "{devices: {gpus: [{deviceName: example.com/card}]}}",
        "{devices: {gpus: [{name: a.b, deviceName: example.com/card}]}}",
        "{devices: {filesystems: [{name: data}]}}",
        "{devices: {disks: [{name: root, cache: fast}]}}",
    ],
)
def test_what_is_misspelt_mistyped_or_refused_is_invalid(domain: str) -> None:
    head = "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: vm}\n"
    assert faults(read_document(f"{head}spec: {{domain: {domain}}}"))


@pytest.mark.parametrize("many", [pool(), replica_set()], ids=lambda many: many["kind"])
def test_the_kinds_of_several_vms_have_their_vms_fields(many: dict[str, Any]) -> None:
    assert faults(many) == []
    template = many["spec"].get("virtualMachineTemplate", many)["spec"]["template"]
    wrong = {**template, "spec": {**template["spec"], "domains": {}}}
    assert faults(json.loads(json.dumps(many).replace(json.dumps(template), json.dumps(wrong))))


def test_what_is_wrong_is_of_the_kind_that_the_manifest_says() -> None:
    """Of a `oneOf` a validator says at the root that the whole manifest is none of its kinds."""
    vm = {**read_input(VMS / "seed-001.yaml").vms[0], "status": {}}
    (error,) = Draft202012Validator(SCHEMA).iter_errors({**vm, "spec": {**vm["spec"], "runStrategy": "Ever"}})
    assert error.instance_path == ["spec", "runStrategy"]
    (error,) = Draft202012Validator(SCHEMA).iter_errors({**vm, "kind": "VirtualMachne"})
    assert error.instance_path == ["kind"]


def test_what_is_refused_says_why_in_the_schema() -> None:
    redirection = SCHEMA["$defs"]["Devices"]["properties"]["clientPassthrough"]
    assert redirection["description"].startswith("refused: USB redirection is")


def test_each_annotation_that_is_read_is_in_the_schema() -> None:
    """And no other, so that an editor offers none that the launcher refuses."""
    for kind in ("Metadata", "TemplateMetadata"):
        assert {*SCHEMA["$defs"][kind]["properties"]["annotations"]["anyOf"][0]["properties"]} == {*NAMES, *Word}


def test_the_command_prints_it(gpu_launcher: Command) -> None:
    result = gpu_launcher("schema")
    assert (json.loads(result.stdout), result.stderr, result.returncode) == (SCHEMA, "", 0)
