"""Claims of a VM's templates, which CDI makes and fills."""

from pathlib import Path

import yaml

from launcher.manifest.parser import read_vm
from launcher.pod.objects import data_volumes
from tests.conftest import Command
from tests.launcher.cases import VMS

VM = VMS / "data-volumes.yaml"
CLAIM = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: imported-data}\nspec: {volumeMode: Block}\n---\n"


def test_they_are_printed_before_the_pod_as_the_templates_have_them() -> None:
    volumes = data_volumes(read_vm(VM))
    templates = yaml.safe_load(VM.read_text())["spec"]["dataVolumeTemplates"]
    assert [volume["spec"] for volume in volumes] == [template["spec"] for template in templates]
    assert [volume["metadata"]["namespace"] for volume in volumes] == ["lab", "lab"]


def test_without_them_a_warning_names_the_claims(gpu_launcher: Command) -> None:
    with_them, without = gpu_launcher("pod", VM), gpu_launcher("pod", VM, "--no-datavolumes")
    kinds = [[found["kind"] for found in yaml.safe_load_all(result.stdout)] for result in (with_them, without)]
    assert kinds == [["ConfigMap", "DataVolume", "DataVolume", "Pod"], ["ConfigMap", "Pod"]]
    assert "warning" not in with_them.stderr
    claims = "claims of these names have to be there, filled: imported-root, imported-data"
    assert without.stderr.endswith(f"gpu-launcher: warning: imported: {claims}\n")


def test_an_instance_has_none() -> None:
    assert data_volumes(read_vm(VMS / "no-devices.yaml")) == ()


def test_a_block_device_is_one_where_its_template_or_its_claim_beside_says_so(tmp_path: Path) -> None:
    assert read_vm(VM).block == {"root"}
    path = tmp_path / "vm.yaml"
    path.write_text(CLAIM + VM.read_text())
    assert read_vm(path).block == {"root", "data"}


def test_render_finds_the_block_device_that_the_pod_has(gpu_launcher: Command) -> None:
    assert gpu_launcher("render", VM).stdout == gpu_launcher("render", VM, "--block-volume", "root").stdout


def test_a_stopped_vm_is_started_by_a_flag(gpu_launcher: Command, tmp_path: Path) -> None:
    path = tmp_path / "vm.yaml"
    path.write_text(VM.read_text().replace("runStrategy: Always", "runStrategy: Halted"))
    assert gpu_launcher("pod", path).returncode == 2
    *_, pod = yaml.safe_load_all(gpu_launcher("pod", path, "--start").stdout)
    assert pod["spec"]["restartPolicy"] == "Always"
