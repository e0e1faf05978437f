"""Input as people have it: several documents, Lists, dumps, standard input, other kinds beside a VM."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.manifest.parser import read_every, read_vm
from program.errors import UserError
from tests.conftest import Command
from tests.launcher.vms import vmi_text, without_lines
from tests.processes import FIXTURES

Document = dict[str, Any]

SERVICE: Document = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {}}


def vm(name: str | None, memory: str = "1Gi", **metadata: Any) -> Document:
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {**({"name": name} if name else {}), **metadata},
        "spec": {
            "runStrategy": "Always",
            "template": {
                "spec": {"domain": {"memory": {"guest": memory}, "devices": {"autoattachPodInterface": False}}}
            },
        },
    }


def written(path: Path, *documents: Any) -> Path:
    path.write_text(yaml.safe_dump_all(documents))
    return path


def problem_of(path: Path, name: str | None = None) -> str:
    with pytest.raises(UserError) as error:
        read_vm(path, name)
    return without_lines(str(error.value), path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "vms.yaml"


def test_a_vm_among_other_objects_is_read_and_the_others_are_named(path: Path) -> None:
    given = read_vm(written(path, SERVICE, vm("one"), {"apiVersion": "v1", "kind": "Secret"}))
    assert given.instance.metadata.name == "one"
    assert given.notes == (f"{path}: passed over, as they are no VMs: Service web, Secret",)


def test_a_separator_before_and_after_and_empty_documents_are_nothing(path: Path) -> None:
    path.write_text(f"---\n# first\n---\n{vmi_text()}---\n---\n# last\n")
    given = read_vm(path)
    assert (given.text, given.notes) == (path.read_text(), ())


@pytest.mark.parametrize("kind", ["List", "VirtualMachineList"])
def test_the_items_of_a_list_are_objects(path: Path, kind: str) -> None:
    path.write_text(json.dumps({"apiVersion": "v1", "kind": kind, "items": [SERVICE, vm("one")]}, indent=2))
    given = read_vm(path)
    assert (given.instance.metadata.name, given.text) == ("one", None)


def test_items_of_a_list_of_vms_may_leave_out_what_the_list_says(path: Path) -> None:
    items = [{key: value for key, value in vm("one").items() if key not in ("kind", "apiVersion")}]
    written(path, {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineList", "items": items})
    assert read_vm(path).instance.metadata.name == "one"


def test_of_several_vms_one_is_picked_by_its_name(path: Path) -> None:
    written(path, vm("one"), vm("two", "2Gi", namespace="lab"), vm("two", "3Gi", namespace="team"))
    assert problem_of(path) == f"{path}: has 3 VMs: one, lab/two, team/two; pick one with --name"
    assert read_vm(path, "one").instance.spec.domain.guest_memory == 1 << 30
    assert read_vm(path, "team/two").instance.spec.domain.guest_memory == 3 << 30
    assert problem_of(path, "two") == f"{path}: has 2 VMs: lab/two, team/two; pick one with --name"
    assert problem_of(path, "x") == f"--name x: {path} has no VM of that name; expected one of one, lab/two, team/two"


def test_what_is_wrong_with_another_vm_does_not_matter(path: Path) -> None:
    written(path, vm("one"), vm("two", "much"))
    assert read_vm(path, "one").instance.metadata.name == "one"
    assert problem_of(path, "two").startswith(f"{path}: two: spec.template.spec.domain.memory.guest: 'much' is not")


def test_every_vm_is_read_by_itself(path: Path) -> None:
    written(path, vm("one"), SERVICE, vm("two"))
    vms = read_every(path)
    assert [given.instance.metadata.name for given in vms] == ["one", "two"]
    assert [len(given.notes) for given in vms] == [1, 0]
    assert [[document["metadata"]["name"] for document in given.documents] for given in vms] == [["one"], ["two"]]


def test_two_vms_of_one_name_are_refused(path: Path) -> None:
    with pytest.raises(UserError, match="has two VMs called one; rename one of them"):
        read_every(written(path, vm("one"), vm("one")))


def test_the_instance_that_a_vm_has_made_is_passed_over(path: Path) -> None:
    made = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "one"}}
    given = read_vm(written(path, made, vm("one")))
    assert given.notes == (f"{path}: passed over, as they are no VMs: VirtualMachineInstance one",)


def test_a_vm_of_another_api_is_passed_over_and_is_refused_by_its_version_where_there_is_no_other(path: Path) -> None:
    other = {"apiVersion": "apps.example.com/v1", "kind": "VirtualMachine", "metadata": {"name": "other"}}
    assert read_vm(written(path, other, vm("one"))).instance.metadata.name == "one"
    assert problem_of(written(path, other)).startswith(
        f"{path}: apiVersion: found 'apps.example.com/v1'; expected 'kub"
    )


def test_an_input_without_a_vm_says_what_it_has(path: Path) -> None:
    assert problem_of(written(path, SERVICE)) == (
        f"{path}: kind: found 'Service'; expected a VirtualMachine or VirtualMachineInstance"
    )
    written(path, *[SERVICE] * 8)
    assert problem_of(path) == (
        f"{path}: has no VM, but {', '.join(['Service web'] * 6)} and 2 more; "
        "expected a VirtualMachine or VirtualMachineInstance as well"
    )


def test_without_a_name_a_vm_is_called_what_it_is_generated_from(path: Path) -> None:
    given = read_vm(written(path, vm(None, generateName="runner-")))
    assert given.instance.metadata.name == "runner"
    assert given.notes == (
        f"{path}: metadata.generateName: the VM is called runner here; write a name for another one",
    )
    assert problem_of(written(path, vm(None, generateName="-"))).startswith(f"{path}: metadata.name: '' is no Kub")
    assert problem_of(written(path, vm(None))) == f"{path}: metadata.name: is missing; add it"


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"kind": "List", "items": ["x"]}, "items[0]: found 'x'; expected an object, with a kind"),
        ({"kind": "List", "items": "x"}, "kind: found 'List'; expected a VirtualMachine or"),
        ({"kind": ["x"]}, "kind: found \"['x']\"; expected a VirtualMachine or"),
        ({}, "kind: is missing; expected a VirtualMachine or"),
        ({"metadata": {"name": "web"}}, "kind: is missing; expected a VirtualMachine or"),
        ({"kind": "Config Map"}, "kind: found 'Config Map'; expected a VirtualMachine or"),
    ],
)
def test_a_list_of_something_else_is_refused(path: Path, document: Document, problem: str) -> None:
    assert problem_of(written(path, document)).startswith(f"{path}: {problem}")


def test_anchors_are_their_documents_own(path: Path) -> None:
    path.write_text("a: &a 1\n---\nb: *a\n")
    assert problem_of(path).startswith(f"{path}: is not YAML: found undefined alias")


def test_all_documents_together_hold_no_more_than_one_may(path: Path) -> None:
    path.write_text("\n---\n".join([f"[{'1, ' * 1000}]"] * 101))
    assert "holds more than 100000 values" in problem_of(path)


# By the commands.

DISK = FIXTURES / "vms" / "instance-type.yaml"


def test_a_dash_is_standard_input(gpu_launcher: Command) -> None:
    text = (FIXTURES / "vms" / "no-devices.yaml").read_text()
    result = gpu_launcher("render", "-", stdin=text)
    assert (result.returncode, result.stdout) == (0, (FIXTURES / "domains" / "no-devices.xml").read_text())
    result = gpu_launcher("render", "-", stdin="a: [")
    assert result.stderr.startswith("gpu-launcher: standard input:2:1: is not YAML: a value is missing before here")


def test_a_pod_for_each_vm_has_that_vm_alone(gpu_launcher: Command, path: Path, tmp_path: Path) -> None:
    written(path, vm("one"), SERVICE, vm("two", "2Gi"))
    result = gpu_launcher("pod", path, "--image", "l")
    passed_over, *pending = result.stderr.splitlines()
    assert passed_over == f"gpu-launcher: note: {path}: passed over, as they are no VMs: Service web"
    wants = "is Pending until a node offers devices.gpu-launcher.dev/kvm"
    assert [line.partition(" (")[0] for line in pending] == [
        f"gpu-launcher: note: {vm}: {wants}" for vm in ("one", "two")
    ]
    objects = list(yaml.safe_load_all(result.stdout))
    assert [(found["kind"], found["metadata"]["labels"]["vm.kubevirt.io/name"]) for found in objects] == [
        ("ConfigMap", "one"),
        ("Pod", "one"),
        ("ConfigMap", "two"),
        ("Pod", "two"),
    ]
    again = tmp_path / "again.yaml"
    again.write_text(objects[2]["data"]["vm.yaml"])
    assert read_vm(again).manifest == read_vm(path, "two").manifest
    alone = gpu_launcher("pod", path, "--image", "l", "--name", "one").stdout
    assert result.stdout.startswith(f"{alone}---\napiVersion: v1\nkind: ConfigMap\n")


def test_what_a_vm_names_is_given_by_flags_too(gpu_launcher: Command, tmp_path: Path) -> None:
    documents = list(yaml.safe_load_all(DISK.read_text()))
    alone = written(tmp_path / "vm.yaml", documents[3])
    size = written(tmp_path / "type.yaml", documents[1])
    likes = written(tmp_path / "likes.yaml", documents[2])
    flags = ("--sysfs", FIXTURES / "sysfs" / "rtx-2060", "--env")
    variable = "PCI_RESOURCE_NVIDIA_COM_TU106_GEFORCE_RTX_2060_REV__A=0000:01:00.0"
    result = gpu_launcher("render", alone, "--instancetype", size, "--preference", likes, *flags, variable)
    assert result.stdout == (FIXTURES / "domains" / "instance-type.xml").read_text(), result.stderr
