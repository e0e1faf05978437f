"""VirtualMachinePool and VirtualMachineInstanceReplicaSet: many VMs of one manifest."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.manifest.parser import read_vm
from launcher.manifest.pools import Many
from tests.conftest import Command
from tests.launcher.manifest.test_inputs import problem_of, vm, written

Document = dict[str, Any]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pool.yaml"


def pool(**spec: Any) -> Document:
    return {
        "apiVersion": "pool.kubevirt.io/v1beta1",
        "kind": "VirtualMachinePool",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "web"}},
            "virtualMachineTemplate": {"metadata": {"labels": {"app": "web"}}, "spec": vm("web")["spec"]},
            **spec,
        },
    }


def replica_set(**spec: Any) -> Document:
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstanceReplicaSet",
        "metadata": {"name": "web"},
        "spec": {
            "selector": {},
            "template": {**vm("web")["spec"]["template"], "metadata": {"labels": {"a": "b"}}},
            **spec,
        },
    }


def test_a_pools_vm_is_its_templates_and_is_called_as_the_pool_is(path: Path) -> None:
    given = read_vm(written(path, pool()))
    assert given.many == Many("statefulset", 3)
    assert given.instance == read_vm(written(path, vm("web"))).instance


def test_a_replica_set_is_a_deployment_of_vms_that_always_run(path: Path, gpu_launcher: Command) -> None:
    assert read_vm(written(path, replica_set())).many == Many("deployment", None)
    config_map, deployment = yaml.safe_load_all(gpu_launcher("pod", path).stdout)
    assert yaml.safe_load(config_map["data"]["vm.yaml"])["kind"] == "VirtualMachine"
    assert (deployment["kind"], deployment["spec"]["template"]["spec"]["restartPolicy"]) == ("Deployment", "Always")
    assert deployment["spec"]["template"]["metadata"]["labels"]["a"] == "b"
    assert "replicas" not in deployment["spec"]


def test_flags_win_over_the_pool(path: Path, gpu_launcher: Command) -> None:
    written(path, pool())
    _, stateful_set = yaml.safe_load_all(gpu_launcher("pod", path).stdout)
    assert (stateful_set["kind"], stateful_set["spec"]["replicas"]) == ("StatefulSet", 3)
    _, deployment = yaml.safe_load_all(gpu_launcher("pod", path, "--as", "deployment", "--replicas", "5").stdout)
    assert (deployment["kind"], deployment["spec"]["replicas"]) == ("Deployment", 5)


def test_what_the_pod_of_a_pool_reads_is_the_vm_of_that_pod(path: Path, gpu_launcher: Command, tmp_path: Path) -> None:
    config_map, _ = yaml.safe_load_all(gpu_launcher("pod", written(path, pool())).stdout)
    again = tmp_path / "vm.yaml"
    again.write_text(config_map["data"]["vm.yaml"])
    assert read_vm(again).instance == read_vm(path).instance


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (pool(scaleInStrategy={"unmanaged": {}}), "spec.scaleInStrategy: is not converted: a StatefulSet removes the"),
        (pool(nameGeneration={"appendIndexToSecretRefs": True}), "spec.nameGeneration.appendIndexToSecretRefs: is not"),
        (
            pool(paused=True),
            "spec.paused: is not converted: a StatefulSet and a Deployment are not paused so; scale it",
        ),
        (pool(replica=3), "spec.replica: not a field that gpu-launcher knows; did you mean replicas?"),
        (pool(virtualMachineTemplate=None), "spec.virtualMachineTemplate: is missing; add it"),
        (pool(virtualMachineTemplate={"spec": {}}), "spec.virtualMachineTemplate.spec.template: is missing; add it"),
        (replica_set(template={"spec": {}}), "spec.template.spec.domain: is missing; add it"),
        ({**pool(), "metadata": {"name": "A"}}, "metadata.name: 'A' is no Kubernetes name"),
        (
            {**pool(), "apiVersion": "kubevirt.io/v1"},
            "apiVersion: found 'kubevirt.io/v1'; expected 'pool.kubevirt.io/v1",
        ),
    ],
)
def test_what_is_wrong_is_named_by_its_path_in_the_pool(path: Path, document: Document, problem: str) -> None:
    assert problem_of(written(path, document)).startswith(f"{path}: {problem}")


def test_fields_that_say_nothing_are_accepted(path: Path) -> None:
    named = {"appendIndexToConfigMapRefs": False}
    assert read_vm(written(path, pool(paused=False, nameGeneration=named, maxUnavailable="50%"))).many is not None
