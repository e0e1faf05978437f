"""A finding has one shape in the JSON of every command: docs/troubleshooting.md, "For programs"."""

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator

from pci.resource import variable
from plugin.doctor.finding import Check
from program.problem import Severity
from tests.clusters import node_of
from tests.conftest import Command, Machine
from tests.forked import forked
from tests.gpuvm.cluster import CARD, event, golden, pending
from tests.gpuvm.standin import stand_in
from tests.kernel import bind
from tests.launcher.vms import RTX_3090_VARIABLE, vmi_text
from tests.processes import FIXTURES

MACHINES = sorted(path.name for path in (FIXTURES / "sysfs").iterdir())
TEXT = {"type": "string", "minLength": 1}
PROBLEM = {"subject": TEXT, "wrong": TEXT, "fix": {"type": "string"}}
FINDING = {
    "type": "object",
    "required": [*PROBLEM],
    "properties": {
        **PROBLEM,
        "severity": {"enum": [severity.word for severity in Severity]},
        "check": {"enum": [*Check]},
        "device": {"type": ["string", "null"]},
        "steps": {"type": "array", "items": TEXT},
        "kind": TEXT,
    },
    "additionalProperties": False,
}
SHAPE = Draft202012Validator(FINDING)
#: Words that a finding has, or had before all commands had the same.
WORDS = {"wrong", "fix", "says", "text"}


def findings(value: Any) -> Iterator[dict[str, Any]]:
    """Each object inside a document that has a word of a finding's."""
    match value:
        case dict():
            for each in value.values():
                if isinstance(each, dict) and each.keys() & WORDS:
                    yield each
                yield from findings(each)
        case list():
            yield from findings(dict(enumerate(value)))


def assert_one_shape(printed: str) -> None:
    found = [*findings(json.loads(printed))]
    assert found
    for each in found:
        SHAPE.validate(each)


@pytest.mark.parametrize("name", MACHINES)
def test_of_a_node(name: str, machine: Machine, gpu_plugin: Command) -> None:
    flags = ("--json", "--sysfs", machine(name), "--pci-ids", FIXTURES / "pci.ids")
    examined = gpu_plugin("doctor", *flags).stdout
    assert_one_shape(examined)
    devices = json.loads(gpu_plugin("inventory", *flags).stdout)["devices"]
    reasons = [device["reason"] for device in devices]
    assert reasons == [device["reason"] for device in json.loads(examined)["devices"]]
    for each in (*reasons, *(device["deadlyReset"] for device in devices)):
        if each is not None:
            SHAPE.validate(each)


def test_of_a_node_that_is_not_wholly_read_and_of_a_card_that_is_not_whole(
    copied_machine: Machine, gpu_plugin: Command, gpu_launcher: Command, tmp_path: Path
) -> None:
    sys, manifest = copied_machine("cards-of-several-groups"), tmp_path / "vm.yaml"
    bind(sys, "0000:03:00.1", "snd_hda_intel")
    (sys / "bus/pci/devices/0000:43:00.0/uevent").write_text("?")
    seen = json.loads(gpu_plugin("inventory", "--json", "--sysfs", sys, "--pci-ids", FIXTURES / "pci.ids").stdout)
    (radeon,) = (device for device in seen["devices"] if device["id"] == "0000:03:00.0")
    manifest.write_text(vmi_text(gpus=[("gpu1", radeon["resource"])]))
    env = {variable(radeon["resource"]): radeon["id"]}
    (entry,) = json.loads(gpu_launcher("explain", manifest, "--json", "--sysfs", sys, env=env).stdout)["entries"]
    places = (seen["notRead"], radeon["leftBehind"], entry["leftBehind"])
    assert all(places)
    for each in chain(*places):
        SHAPE.validate(each)


@pytest.mark.parametrize("env", [{}, {RTX_3090_VARIABLE: "0000:01:00.0"}], ids=["no-card", "a-card-left-over"])
def test_of_a_vm_in_its_pod(env: dict[str, str], gpu_launcher: Command, tmp_path: Path) -> None:
    manifest = tmp_path / "vm.yaml"
    manifest.write_text(vmi_text(gpus=[] if env else [("gpu1", CARD)]))
    assert_one_shape(gpu_launcher("check", manifest, "--connect", "test:///default", "--json", env=env).stdout)


def test_of_the_nodes_for_a_vm(gpu_launcher: Command, tmp_path: Path) -> None:
    manifest, cluster = tmp_path / "vm.yaml", tmp_path / "nodes.json"
    manifest.write_text(vmi_text(gpus=[("gpu1", CARD)]))
    taint = {"key": "role", "effect": "NoSchedule"}
    nodes = [node_of("gpu-1", cordoned=True), node_of("gpu-2", taints=[taint]), node_of("cp", {CARD: "0"})]
    cluster.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}))
    assert_one_shape(gpu_launcher("fit", manifest, "--cluster", cluster, "--json").stdout)


def test_of_a_vm_that_waits(tmp_path: Path) -> None:
    """Whose document is the finding, with what it was taken from beside it."""
    kubectl = stand_in(tmp_path / "kubectl")
    vm = pending(said := f"0/1 nodes are available: 1 Insufficient {CARD}.")
    kubectl.answers("get pods", [vm])
    kubectl.answers("get events", [event("FailedScheduling", said)])
    kubectl.answers("get configmap/", golden(kind="ConfigMap"))
    kubectl.answers("get nodes,pods --all-namespaces", [node_of("gpu-1"), vm])
    document = json.loads(forked("kubectl-gpuvm", "why", "vm", "-o", "json", env=kubectl.env).stdout)
    beside = {key: document.pop(key) for key in ("events", "launcher", "fit")}
    assert all(beside[key] for key in ("events", "fit"))
    SHAPE.validate(document)
