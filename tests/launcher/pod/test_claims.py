"""Pods whose cards DRA gives.

`make test ARGS=--regenerate` writes fixtures/choosing/selection.pod.yaml anew; read it in the diff.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema_rs import Draft7Validator

from launcher.manifest.parser import read_vm
from launcher.pod.documents import documents
from launcher.pod.objects import objects
from pci.device_metadata import of_template
from program.errors import UserError
from tests.conftest import Command, Machine
from tests.launcher.cases import VMS
from tests.launcher.pod.made import IMAGE, NODE_DEVICES
from tests.openapi import CUT, KINDS
from tests.processes import FIXTURES

SELECTION = FIXTURES / "choosing" / "selection.yaml"
GOLDEN = FIXTURES / "choosing" / "selection.pod.yaml"
GPUS = "[{name: gpu1, deviceName: nvidia.com/GA102_GEFORCE_RTX_3090}]"
USE_TYPE = "nvidia.com/use-gputype"


def written(path: Path, gpus: str = GPUS, annotation: str = "", claim: str = "mine") -> Path:
    path.write_text(f"""
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {{name: vm, annotations: {{{annotation}}}}}
spec:
  domain: {{memory: {{guest: 1Gi}}, devices: {{autoattachPodInterface: false, gpus: {gpus}}}}}
  resourceClaims: [{{name: {claim}, resourceClaimName: mine}}]
""")
    return path


def text_of(vm: Path, *, dra: bool = True) -> str:
    return documents(objects(read_vm(vm), image=IMAGE, block=frozenset(), node_devices=NODE_DEVICES, dra=dra))


def objects_of(vm: Path) -> dict[str, Any]:
    return {found["kind"]: found for found in yaml.load_all(text_of(vm), yaml.CSafeLoader)}


def test_the_template_is_there_and_the_manifest_asks_for_its_requests(request: pytest.FixtureRequest) -> None:
    found = text_of(SELECTION)
    if request.config.getoption("--regenerate"):
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text()


def test_a_vm_without_entries_by_device_name_is_as_it_was() -> None:
    for vm in ("dra", "no-devices"):
        assert text_of(VMS / f"{vm}.yaml") == text_of(VMS / f"{vm}.yaml", dra=False)


def test_devices_of_an_instance_type_are_claimed_in_it() -> None:
    found = objects_of(VMS / "instance-type.yaml")
    vm, *types = yaml.safe_load_all(found["ConfigMap"]["data"]["vm.yaml"])
    named = [entry for each in types for entry in each["spec"].get("gpus", ())]
    assert [(entry["claimName"], entry["requestName"]) for entry in named] == [("gpu-launcher", "gpu-0")]
    assert vm["spec"]["template"]["spec"]["resourceClaims"] == [
        {"name": "gpu-launcher", "resourceClaimTemplateName": found["ResourceClaimTemplate"]["metadata"]["name"]}
    ]


def test_what_the_pod_reads_has_the_card_that_dra_gives(
    tmp_path: Path, gpu_launcher: Command, machine: Machine
) -> None:
    """The manifest of the config map, as `run` reads it, beside the driver's file."""
    vm = written(tmp_path / "vm.yaml")
    found = objects_of(vm)
    (tmp_path / "read.yaml").write_text(found["ConfigMap"]["data"]["vm.yaml"])
    _, reference = found["Pod"]["spec"]["resourceClaims"]
    (request,) = found["ResourceClaimTemplate"]["spec"]["spec"]["devices"]["requests"]
    directory = tmp_path / "dra" / of_template(reference["name"], request["name"])
    directory.mkdir(parents=True)
    device = {"attributes": {"resource.kubernetes.io/pciBusID": {"string": "0000:e1:00.0"}}}
    said = {
        "apiVersion": "metadata.resource.k8s.io/v1alpha1",
        "requests": [{"name": request["name"], "devices": [device]}],
    }
    (directory / "gpu-launcher.dev-metadata.json").write_text(json.dumps(said))
    sysfs = machine("two-rtx-3090")
    result = gpu_launcher("explain", tmp_path / "read.yaml", "--dra", tmp_path / "dra", "--sysfs", sysfs, "--json")
    assert (result.stderr, result.returncode) == ("", 0)
    assert "0000:e1:00.0" in result.stdout


def test_without_dra_a_choice_is_refused_and_says_why(tmp_path: Path, gpu_launcher: Command) -> None:
    vm = written(tmp_path / "vm.yaml", annotation=f"{USE_TYPE}: A100")
    why = (
        f"{vm}:4: metadata.annotations: {USE_TYPE} chooses among cards, and gpu 'gpu1' asks a device plugin for "
        "nvidia.com/GA102_GEFORCE_RTX_3090, which gives whichever is free; make the pod with gpu-launcher pod --dra, "
        "for nodes whose gpu-plugin serves DRA, or leave it out\n"
    )
    pod = gpu_launcher("pod", vm)
    assert (pod.stdout, pod.stderr, pod.returncode) == ("", f"gpu-launcher: {why}", 2)
    render = gpu_launcher("render", vm, "--env", "PCI_RESOURCE_NVIDIA_COM_GA102_GEFORCE_RTX_3090=0000:01:00.0")
    assert (render.stdout, render.stderr, render.returncode) == ("", f"gpu-launcher: {why}", 2)
    assert gpu_launcher("pod", vm, "--dra").returncode == 0


@pytest.mark.parametrize("dra", [False, True])
@pytest.mark.parametrize(
    ("gpus", "annotation", "said"),
    [
        ("[]", f"{USE_TYPE}: A100", f"{USE_TYPE} is for gpus by deviceName, and the VM has none"),
        (
            "[{name: g, claimName: mine, requestName: r}]",
            "nvidia.com/numa-bind: 'true'",
            "nvidia.com/numa-bind is for gpus by deviceName, and the VM has none",
        ),
        (
            "[]",
            "gpu-launcher.dev/together: node",
            "gpu-launcher.dev/together is for gpus and hostDevices by deviceName, and the VM has none",
        ),
    ],
)
def test_a_choice_for_no_entry_is_refused(tmp_path: Path, gpus: str, annotation: str, said: str, *, dra: bool) -> None:
    vm = written(tmp_path / "vm.yaml", gpus, annotation)
    with pytest.raises(UserError, match=said):
        text_of(vm, dra=dra)


def test_a_claim_of_the_name_that_is_to_be_made_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has one called 'gpu-launcher', which is the name"):
        text_of(written(tmp_path / "vm.yaml", claim="gpu-launcher"))


def test_the_template_is_valid_to_kubernetes_schema() -> None:
    schema = json.loads(CUT.read_text())
    for kind, found in objects_of(SELECTION).items():
        validator = Draft7Validator({**schema, "$ref": f"#/definitions/{KINDS[kind]}"})
        assert [error.message for error in validator.iter_errors(found)] == []
