"""gpu-launcher fit as people call it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.clusters import RTX_3090, claim_of, hgx, machine, node_of, pod_on, slices_of, snapshot_of
from tests.conftest import Command, Machine
from tests.launcher.cases import VMS
from tests.processes import FIXTURES

HGX = slices_of(snapshot_of(hgx()), "hgx")
RTX = slices_of(machine("two-rtx-3090"), "rtx")


VM = """
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: vm}
spec:
  domain:
    memory: {guest: 1Gi}
    devices: {gpus: [{name: gpu1, deviceName: nvidia.com/GA102_GEFORCE_RTX_3090}]}
"""


def written(path: Path) -> Path:
    path.write_text(VM)
    return path


def listed(path: Path, *objects: dict[str, Any]) -> Path:
    """As kubectl prints them, as JSON or YAML."""
    document = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    path.write_text(json.dumps(document) if path.suffix == ".json" else yaml.safe_dump(document))
    return path


@pytest.mark.parametrize("name", ["slices.json", "slices.yaml"])
def test_it_names_nodes_and_cards(tmp_path: Path, gpu_launcher: Command, name: str) -> None:
    result = gpu_launcher("fit", written(tmp_path / "vm.yaml"), "--cluster", listed(tmp_path / name, *RTX, *HGX))
    lines = result.stdout.splitlines()
    assert (result.stderr, result.returncode) == ("", 0)
    assert lines[0] == "default/vm fits on 1 of 2 nodes, as far as its cards are concerned."
    assert [line.split()[:4] for line in lines[2:4]] == [
        ["NODE", "ENTRY", "CARD", "PRODUCT"],
        ["rtx", "gpu", "'gpu1'", "0000:01:00.0"],
    ]
    assert "hgx: no card here could be gpu 'gpu1'" in lines


def test_where_none_fits_the_exit_code_is_1(tmp_path: Path, gpu_launcher: Command) -> None:
    taken = claim_of("c", [("rtx", "pci-0000-01-00-0"), ("rtx", "pci-0000-e1-00-0")], "other")
    slices = listed(tmp_path / "slices.json", *RTX, taken)
    result = gpu_launcher("fit", written(tmp_path / "vm.yaml"), "--cluster", slices)
    assert (result.stderr, result.returncode) == ("", 1)
    assert result.stdout.startswith("default/vm fits on none of 1 node.\n")
    assert result.stdout.count("taken by claim default/c of pod other") == 2
    as_json = gpu_launcher("fit", tmp_path / "vm.yaml", "--cluster", slices, "--json")
    assert (json.loads(as_json.stdout)["fits"], as_json.returncode) == (False, 1)


def test_with_nodes_and_slices_it_judges_what_pod_dra_asks_for(tmp_path: Path, gpu_launcher: Command) -> None:
    """The node offers no such resource, which only a device plugin would have to."""
    room = node_of("rtx", {RTX_3090: "0"})
    vm, cluster = written(tmp_path / "vm.yaml"), listed(tmp_path / "all.json", *RTX, room, pod_on("rtx", "a"))
    result = gpu_launcher("fit", vm, "--cluster", cluster)
    assert (result.stdout.splitlines()[0], result.returncode) == ("default/vm fits on 1 of 1 node.", 0)
    named = gpu_launcher("fit", vm, "--cluster", cluster, "--pod", "ml/a")
    assert (named.stdout, named.stderr, named.returncode) == (
        "", "gpu-launcher: --pod ml/a: is no pod that waits for a node; get nodes,pods -A, or leave it out\n", 2
    )  # fmt: skip


def test_a_pod_that_waits_is_judged_by_its_claim_and_told_in_the_words_of_its_vm(
    tmp_path: Path, gpu_launcher: Command
) -> None:
    """Whose manifest has deviceNames where the one in the pod's record has requests of its claim."""
    vm = written(tmp_path / "vm.yaml")
    vm.write_text(VM.replace("{name: vm}", "{name: vm, annotations: {nvidia.com/nouse-gputype: RTX}}"))
    made = [*yaml.safe_load_all(gpu_launcher("pod", vm, "--dra", "--image", "x").stdout)]
    for each in made:
        each["metadata"]["namespace"] = "default"
    pod = next(each for each in made if each["kind"] == "Pod") | {"status": {"phase": "Pending"}}
    room = [*RTX, node_of("rtx"), pod_on("rtx", "a")]
    without = gpu_launcher("fit", vm, "--cluster", listed(tmp_path / "before.json", *room))
    cluster = listed(tmp_path / "after.json", *room, *made, pod)
    record = tmp_path / "record.yaml"
    record.write_text(next(each for each in made if each["kind"] == "ConfigMap")["data"]["vm.yaml"])
    for manifest in (vm, record):
        named = gpu_launcher("fit", manifest, "--cluster", cluster, "--pod", f"default/{pod['metadata']['name']}")
        assert (named.returncode, named.stderr) == (1, "")
        assert "excluded by nvidia.com/nouse-gputype 'RTX'" in named.stdout
        assert "leave out nvidia.com/nouse-gputype 'RTX'" in named.stdout
        assert named.stdout.partition("\n")[2] == without.stdout.partition("\n")[2]


def test_a_vm_without_cards_fits_anywhere(tmp_path: Path, gpu_launcher: Command) -> None:
    result = gpu_launcher("fit", VMS / "no-devices.yaml", "--cluster", listed(tmp_path / "slices.json", *RTX))
    assert (result.stdout, result.stderr, result.returncode) == ("default/no-devices wants no card by DRA.\n", "", 0)


def test_a_directory_of_inventories_says_what_a_vm_would_find(
    tmp_path: Path, gpu_launcher: Command, gpu_plugin: Command, machine: Machine
) -> None:
    nodes = tmp_path / "nodes"
    nodes.mkdir()
    for node, name in (("one", "two-rtx-3090"), ("two", "rtx-2060"), ("three", "two-gpus-one-group")):
        inventory = gpu_plugin("inventory", "--json", "--sysfs", machine(name), "--pci-ids", FIXTURES / "pci.ids")
        assert inventory.returncode == 0
        (nodes / f"{node}.json").write_text(inventory.stdout)
    result = gpu_launcher("fit", written(tmp_path / "vm.yaml"), "--cluster", nodes, "--json")
    found = {node["node"]: node for node in json.loads(result.stdout)["nodes"]}
    assert {name: node["fits"] for name, node in found.items()} == {"one": True, "two": False, "three": False}
    (card,) = found["one"]["takes"]
    (published,) = (each for each in slices_of_one() if each["name"] == "pci-0000-01-00-0")
    assert card["uuid"] == published["attributes"]["uuid"]["string"]
    assert any("not offered: shares group 1" in str(each["reason"]) for each in found["three"]["cards"])


def slices_of_one() -> list[dict[str, Any]]:
    """The same machine's devices, published by a node of that name."""
    (slice_,) = slices_of(machine("two-rtx-3090"), "one")
    devices: list[dict[str, Any]] = slice_["spec"]["devices"]
    return devices


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty; expected what `kubectl get nodes,pods"),
        ("a: [", ":2:1: is not YAML: a value is missing before here"),
        ("[1]", "has list where an object was expected"),
        ('{"items": [3]}', "has int where an object was expected"),
        ("{" * 2000, "is not YAML: nested more than 100 levels deep"),
    ],
)
def test_what_is_no_list_of_objects_is_one_line(tmp_path: Path, gpu_launcher: Command, text: str, said: str) -> None:
    (tmp_path / "slices").write_text(text)
    result = gpu_launcher("fit", written(tmp_path / "vm.yaml"), "--cluster", tmp_path / "slices")
    assert (result.stdout, result.returncode, result.stderr.count("\n")) == ("", 2, 1)
    assert said in result.stderr


def test_a_file_that_is_not_there_and_an_empty_directory(tmp_path: Path, gpu_launcher: Command) -> None:
    vm = written(tmp_path / "vm.yaml")
    missing = gpu_launcher("fit", vm, "--cluster", tmp_path / "missing")
    assert (missing.returncode, "cannot be read: No such file or directory" in missing.stderr) == (2, True)
    (tmp_path / "empty").mkdir()
    empty = gpu_launcher("fit", vm, "--cluster", tmp_path / "empty")
    assert (empty.returncode, "has no NODE.json; expected what `gpu-plugin inventory" in empty.stderr) == (2, True)


def test_standard_input_is_one_of_both(gpu_launcher: Command) -> None:
    result = gpu_launcher("fit", "-", "--cluster", "-", stdin=(VMS / "no-devices.yaml").read_text())
    assert result.returncode == 2
    assert "--cluster -: standard input is the VM already; name a file for one of them" in result.stderr
