"""Who a VM is: its namespace and name decide its guest's UUID and MAC addresses."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from lxml import etree

from launcher.manifest.identity import Known, known_in
from launcher.manifest.parser import read_every, read_vm
from program.errors import UserError
from tests.conftest import Command
from tests.launcher.manifest.test_inputs import vm, written

POD = {"GPU_LAUNCHER_NAMESPACE": "team", "GPU_LAUNCHER_NAME": "web-1"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "vm.yaml"


def with_network(document: dict[str, Any]) -> dict[str, Any]:
    document["spec"]["template"]["spec"]["domain"]["devices"] = {}
    return document


def guest(gpu_launcher: Command, path: Path, *flags: str) -> tuple[str, ...]:
    """The domain's name, its UUID and the MAC address of its network card."""
    domain = etree.fromstring(gpu_launcher("render", path, *flags).stdout)
    (mac,) = domain.findall("devices/interface/mac")
    return domain.findtext("name") or "", domain.findtext("uuid") or "", mac.get("address") or ""


def test_two_replicas_in_two_namespaces_are_four_guests_and_stay_so(gpu_launcher: Command, path: Path) -> None:
    written(path, with_network(vm("web")))
    places = [(namespace, name) for namespace in ("one", "two") for name in ("web-0", "web-1")]
    variables = [
        (f"--env=GPU_LAUNCHER_NAMESPACE={namespace}", f"--env=GPU_LAUNCHER_NAME={name}") for namespace, name in places
    ]
    guests = [guest(gpu_launcher, path, *each) for each in variables]
    assert [name for name, _, _ in guests] == [f"{namespace}_{name}" for namespace, name in places]
    for number in (1, 2):
        assert len({each[number] for each in guests}) == 4
    assert [guest(gpu_launcher, path, *each) for each in variables] == guests


def test_a_flag_gives_the_namespace_that_the_pod_would_know(gpu_launcher: Command, path: Path) -> None:
    written(path, with_network(vm("web")))
    in_pod = guest(gpu_launcher, path, "--env=GPU_LAUNCHER_NAMESPACE=team", "--env=GPU_LAUNCHER_NAME=web")
    assert guest(gpu_launcher, path, "--env=X=1", "-n", "team") == in_pod
    written(path, with_network(vm("web", namespace="team")))
    assert guest(gpu_launcher, path, "--env=X=1") == in_pod
    written(path, with_network(vm("web")))
    assert guest(gpu_launcher, path, "--env=X=1") == guest(gpu_launcher, path, "--env=X=1", "--namespace", "default")


def test_a_uuid_of_the_manifests_own_wins_over_everything(path: Path) -> None:
    document = vm("web")
    uuid = "6f4f1d70-2f4c-5d51-9b5e-3e7d54c1a2b0"
    document["spec"]["template"]["spec"]["domain"]["firmware"] = {"uuid": uuid}
    written(path, document)
    assert str(read_vm(path, known=known_in(POD, None)).instance.uuid) == uuid


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (known_in({}, "b"), "is a, and --namespace is b; expected --namespace a, or leave it out of the manifest"),
        (
            known_in({"GPU_LAUNCHER_NAMESPACE": "b"}, None),
            "is a, and GPU_LAUNCHER_NAMESPACE is b; apply its objects in a, or leave it out of the manifest",
        ),
    ],
)
def test_another_namespace_than_the_manifests_is_refused_as_kubectl_refuses_it(
    path: Path, known: Known, said: str
) -> None:
    written(path, vm("web", namespace="a"))
    with pytest.raises(UserError) as refused:
        read_vm(path, known=known)
    assert str(refused.value) == f"{path}:5: metadata.namespace: {said}"


def test_the_same_namespace_is_none_other_and_a_flag_wins_over_the_pods(path: Path) -> None:
    written(path, vm("web", namespace="a"))
    assert read_vm(path, known=Known("a")).namespace == "a"
    assert read_vm(path, known=known_in(POD, "a")).instance.metadata.namespace == "a"


def test_of_several_vms_each_that_is_elsewhere_is_named(path: Path) -> None:
    written(path, vm("one", namespace="a"), vm("two"), vm("three", namespace="c"))
    with pytest.raises(UserError) as refused:
        read_every(path, known=Known("b"))
    assert [problem.subject for problem in refused.value.problems] == [
        f"{path}:5: a/one: metadata.namespace",
        f"{path}:34: c/three: metadata.namespace",
    ]


def test_a_namespace_that_is_none_is_refused_by_what_said_it(path: Path) -> None:
    written(path, vm("web"))
    with pytest.raises(UserError, match=r"metadata\.namespace \(--namespace\): 'Team A' is no DNS label"):
        read_vm(path, known=Known("Team A"))
    with pytest.raises(UserError, match=r"metadata\.name \(GPU_LAUNCHER_NAME\): '\.\./x' is no Kubernetes name"):
        read_vm(path, known=known_in({"GPU_LAUNCHER_NAME": "../x"}, None))


def test_the_objects_of_a_pod_are_in_the_flags_namespace_and_its_manifest_is_as_it_was(
    gpu_launcher: Command, path: Path
) -> None:
    written(path, vm("web"))
    objects = list(yaml.safe_load_all(gpu_launcher("pod", path, "-n", "team").stdout))
    assert {each["metadata"]["namespace"] for each in objects} == {"team"}
    assert objects[0]["data"]["vm.yaml"] == path.read_text()
    wrong = gpu_launcher("pod", written(path, vm("web", namespace="a")), "-n", "team")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "metadata.namespace: is a, and --namespace is team" in wrong.stderr


def test_the_pod_tells_the_launcher_its_namespace_and_name(gpu_launcher: Command, path: Path) -> None:
    *_, pod = yaml.safe_load_all(gpu_launcher("pod", written(path, vm("web"))).stdout)
    (container,) = pod["spec"]["containers"]
    fields = {each["name"]: each["valueFrom"]["fieldRef"] for each in container["env"] if "valueFrom" in each}
    assert fields == {
        "GPU_LAUNCHER_NAMESPACE": {"fieldPath": "metadata.namespace"},
        "GPU_LAUNCHER_NAME": {"fieldPath": "metadata.name"},
    }


@pytest.mark.parametrize("command", ["render", "explain", "check", "pod", "fit", "run"])
def test_every_command_of_a_vm_takes_the_namespace(gpu_launcher: Command, path: Path, command: str) -> None:
    written(path, vm("web", namespace="a"))
    flags = ["--cluster", path.parent] if command == "fit" else []
    refused = gpu_launcher(command, path, "-n", "b", *flags)
    assert "metadata.namespace: is a, and --namespace is b; expected --namespace a" in refused.stderr


def test_each_pod_of_a_generated_name_is_another_vm(gpu_launcher: Command, path: Path) -> None:
    document = vm(None, generateName="runner-")
    document["spec"]["template"]["spec"]["domain"]["firmware"] = {"bootloader": {"efi": {"persistent": True}}}
    written(path, document)
    names = set()
    for _ in range(2):
        config_map, claim, pod = yaml.safe_load_all(gpu_launcher("pod", path).stdout)
        name = pod["metadata"]["name"]
        assert re.fullmatch("runner-[bcdfghjklmnpqrstvwxz2456789]{5}", name)
        assert name in config_map["metadata"]["name"]
        assert claim["metadata"]["name"] == f"persistent-state-for-{name}"
        assert pod["spec"]["hostname"] == name
        names.add(name)
    assert len(names) == 2


def test_a_vm_of_a_generated_name_is_called_as_its_pod_is(path: Path) -> None:
    written(path, vm(None, generateName="runner-"))
    given = read_vm(path, known=known_in({"GPU_LAUNCHER_NAME": "runner-x7k2p"}, None))
    assert (given.instance.metadata.name, given.notes) == ("runner-x7k2p", ())
