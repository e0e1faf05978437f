"""The errors that a new user meets: the whole line, in the user's words, with the line of the file.

Before each stands what the launcher used to say. The words for what is no YAML: tests/program/test_document.py.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.manifest.parser import read_every, read_vm
from program.errors import UserError
from program.problem import Problem
from tests.launcher.manifest.test_inputs import SERVICE, vm, written
from tests.launcher.manifest.test_pools import pool
from tests.launcher.vms import RTX_2060, vmi_text
from tests.program.test_document import TEMPLATE

QUANTITY = "expected a number with a suffix, like 8Gi or 500m"
VM = "expected a VirtualMachine or VirtualMachineInstance"
TEXT = vmi_text(gpus=[("gpu1", RTX_2060)])
TWO_DISKS = "      disks:\n      - name: root\n      - name: root\n"
IN_VM = """
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: vm}
spec:
  template:
    spec:
      runStrategy: Always
      domain:
        memory: {guest: 1Gi}
        interfaces: [{name: default, masquerade: {}}]
        devices:
          disks:
          - name: root
            disk: {bus: virtio, bootOrder: 1}
"""


def lines_of(path: Path, content: str | bytes) -> list[str]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as error:
        read_vm(path)
    return [line.replace(str(path), "vm.yaml") for line in error.value.lines]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        # vm.yaml: found None; expected a VirtualMachine or VirtualMachineInstance
        ("", f"vm.yaml: is empty; {VM}"),
        ("# name: vm\n---\n", f"vm.yaml: has only comments; {VM}"),
        # vm.yaml: found "<domain type='kvm'> <name>vm</name> </domain>"; expected a VirtualMachine or ...
        (
            "<domain type='kvm'>\n  <name>vm</name>\n</domain>\n",
            f"vm.yaml:1: is XML; {VM}: gpu-launcher makes libvirt's XML of that",
        ),
        # vm.yaml: is not YAML: line 3, column 17: mapping values are not allowed in this context; expected a ...
        (
            "\n<?xml version='1.0'?>\n<domain>\n  <description>a: b</description>\n</domain>\n",
            f"vm.yaml:1: is XML; {VM}: gpu-launcher makes libvirt's XML of that",
        ),
        # vm.yaml: is not YAML: line 6, column 1: ... found character that cannot start any token; expected a ...
        (
            TEXT.replace("    memory", "\tmemory"),
            "vm.yaml:6:1: is not YAML: a tab is here, and YAML is indented with spaces; write spaces",
        ),
        # vm.yaml: is not YAML: line 3, column 18: ... found unhashable key; expected a VirtualMachine or ...
        (
            TEXT.replace("name: vm", "name: {{ .Values.name }}"),
            f"vm.yaml:3: {TEMPLATE}",
        ),
        # vm.yaml: is not YAML: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte; expected ...
        (TEXT.encode("utf-16"), "vm.yaml:1: is text in UTF-16; save it as UTF-8"),
        # vm.yaml: is not YAML: 'utf-8' codec can't decode byte 0xe9 in position 77: invalid continuation byte; ...
        (
            TEXT.replace("metadata:", "# café\nmetadata:").encode("latin-1"),
            "vm.yaml:3: has the byte 0xe9, which is not UTF-8; save it as UTF-8",
        ),
        # vm.yaml: spec.domain.devices.networks: not a field that gpu-launcher knows; known here: gpus, hostDevices, ...
        (
            vmi_text(domain="      networks: [{name: default, pod: {}}]\n"),
            "vm.yaml:10: spec.domain.devices.networks: is in the wrong place; write it as spec.networks",
        ),
        # vm.yaml: spec.domain.devices: two devices would have the alias 'root' in the domain; rename one of them
        (
            vmi_text(domain=TWO_DISKS) + "  volumes: [{name: root, emptyDisk: {capacity: 1Gi}}]\n",
            "vm.yaml:12: spec.domain.devices.disks[1]: is called 'root', as disks[0] is; rename one of them",
        ),
        # vm.yaml: kind: found None; expected a VirtualMachine or VirtualMachineInstance
        (TEXT.replace("kind: VirtualMachineInstance\n", ""), f"vm.yaml:1: kind: is missing; {VM}"),
        # vm.yaml: spec.domain.memory.guest: '1Qi' is not a quantity; ...
        (
            TEXT.replace("1Gi", "1Qi"),
            f"vm.yaml:6: spec.domain.memory.guest: '1Qi' is not a quantity; {QUANTITY}",
        ),
    ],
)
def test_of_a_manifest(tmp_path: Path, content: str | bytes, line: str) -> None:
    assert lines_of(tmp_path / "vm.yaml", content) == [line]


def test_fields_in_the_wrong_place_have_their_own_line_and_the_path_where_they_belong(tmp_path: Path) -> None:
    devices, wrong = "spec.template.spec.domain.devices", "is in the wrong place"
    assert sorted(lines_of(tmp_path / "vm.yaml", IN_VM)) == [
        f"vm.yaml:11: spec.template.spec.domain.interfaces: {wrong}; write it as {devices}.interfaces",
        f"vm.yaml:15: {devices}.disks[0].disk.bootOrder: {wrong}; write it as {devices}.disks[0].bootOrder",
        f"vm.yaml:8: spec.template.spec.runStrategy: {wrong}; write it as spec.runStrategy",
    ]


def test_an_annotation_has_the_line_where_it_stands(tmp_path: Path) -> None:
    annotations = "metadata:\n  name: vm\n  annotations:\n    a: b\n    gpu-launcher.dev/layout: '2'\n"
    (line,) = lines_of(tmp_path / "vm.yaml", TEXT.replace("metadata: {name: vm}\n", annotations))
    assert line == "vm.yaml:7: metadata.annotations: gpu-launcher.dev/layout: '2'; expected '1'"


def test_lines_count_over_the_whole_file_and_lists_and_json_have_lines_too(tmp_path: Path) -> None:
    path = tmp_path / "vms.yaml"
    wrong = vm("two", "much")
    path.write_text(f"# all\n---\n{yaml.safe_dump(SERVICE)}---\n{yaml.safe_dump_all([vm('one'), wrong])}")
    subject = "spec.template.spec.domain.memory.guest"
    with pytest.raises(UserError) as error:
        read_every(path)
    number = path.read_text()[: path.read_text().index("guest: much")].count("\n") + 1
    assert error.value.problem.subject == f"{path}:{number}: two: {subject}"
    path.write_text(
        '{"kind": "VirtualMachineList",\n"apiVersion": "kubevirt.io/v1",\n"items": [{\n"metadata": {"name": "one"},\n'
        '"spec": {"template": {\n"spec": {"domain": {"memory":\n{"guest": "much"}}}}}}]}'
    )
    with pytest.raises(UserError) as error:
        read_every(path)
    assert error.value.problem.subject == f"{path}:7: {subject}"


@pytest.mark.parametrize(
    ("manifest", "place"),
    [
        (vmi_text(), "6: spec.domain.memory.guest"),
        (yaml.safe_dump(vm("one")), "13: spec.template.spec.domain.memory.guest"),
        (yaml.safe_dump(pool()), "22: spec.virtualMachineTemplate.spec.template.spec.domain.memory.guest"),
    ],
)
def test_a_problem_of_a_later_stage_has_the_line_of_its_field(tmp_path: Path, manifest: str, place: str) -> None:
    path = tmp_path / "vm.yaml"
    path.write_text(manifest)
    given = read_vm(path)
    problem = Problem("spec.domain.memory.guest", "is too much for this pod", "write less")
    assert given.located(problem).subject == f"{path}:{place}"
    other = Problem("gpu 'a'", "is not there", "add it")
    assert given.located(other) == other


def test_of_a_vms_own_fields_no_template_stands_before_the_path(tmp_path: Path) -> None:
    path = written(tmp_path / "vm.yaml", vm("one"))
    problem = Problem("spec.runStrategy", "is no Job's", "write Once")
    assert read_vm(path).located(problem).subject == f"{path}:6: spec.runStrategy"


@pytest.mark.parametrize("manifest", [vm("one"), pool()], ids=lambda manifest: manifest["kind"])
def test_the_name_is_that_of_the_object_itself(tmp_path: Path, manifest: dict[str, Any]) -> None:
    path = written(tmp_path / "vm.yaml", manifest)
    problem = Problem("metadata.name", "is too long", "shorten it")
    assert read_vm(path).located(problem).subject == f"{path}:4: metadata.name"


def test_an_instance_type_has_its_lines_in_its_own_file(tmp_path: Path) -> None:
    named = {**vm("one"), "spec": {**vm("one")["spec"], "instancetype": {"name": "big"}}}
    path, types = tmp_path / "vm.yaml", tmp_path / "big.yaml"
    path.write_text(yaml.safe_dump(named))
    types.write_text(
        "apiVersion: instancetype.kubevirt.io/v1beta1\nkind: VirtualMachineClusterInstancetype\n"
        "metadata: {name: big}\nspec:\n  cpu: {guest: 2}\n  memory:\n    guest: much\n"
    )
    with pytest.raises(UserError) as error:
        read_vm(path, types={"instancetype": types})
    assert error.value.problem.subject == f"{types}:7: VirtualMachineClusterInstancetype big: spec.memory.guest"
