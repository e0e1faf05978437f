"""The component for nodes with a Fabric Manager: it fits DaemonSet and program, and docs/fabric.md explains it."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.processes import ROOT

PLUGIN = ROOT / "deploy" / "plugin"
FABRIC, BIND, MODULE_IDS = (PLUGIN / "components" / name for name in ("fabric", "bind", "module-ids"))
DRA = ROOT / "deploy" / "dra"
PAGE = (ROOT / "docs" / "fabric.md").read_text()


def read(name: str, component: Path = FABRIC) -> Any:
    return yaml.safe_load((component / name).read_text())


def parameters(command: str, arguments: list[str]) -> dict[str, Any]:
    """What the program makes of these arguments; a usage error fails."""
    from typer.core import TyperGroup
    from typer.main import get_command

    from plugin.cli import command_line

    group = get_command(command_line([command]))
    assert isinstance(group, TyperGroup)
    return group.commands[command].make_context(command, list(arguments)).params


def patched(document: Any, operations: list[dict[str, Any]]) -> Any:
    """The document after a JSON patch (RFC 6902) of the kinds that the components have."""
    document = copy.deepcopy(document)
    for operation in operations:
        *parents, last = operation["path"].split("/")[1:]
        parent = document
        for name in parents:
            parent = parent[int(name) if isinstance(parent, list) else name]
        match operation["op"], last:
            case "test", _:
                assert parent[last] == operation["value"]
            case "add", "-":
                parent.append(operation["value"])
            case "replace", _:
                assert last in parent
                parent[last] = operation["value"]
            case unknown:
                raise AssertionError(unknown)
    return document


def test_every_mount_has_its_volume_and_its_reason() -> None:
    pod = read("daemonset.yaml")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    for mount in container["volumeMounts"]:
        assert f"| `{mount['mountPath']}` |" in PAGE
    for label in pod["nodeSelector"]:
        assert label in PAGE


def test_volumes_of_one_name_are_one_volume() -> None:
    """Beside those of the DaemonSet, with or without DRA, and of the component that binds."""
    volumes = [
        volume
        for directory in (FABRIC, PLUGIN, BIND, DRA)
        for volume in read("daemonset.yaml", directory)["spec"]["template"]["spec"]["volumes"]
    ]
    volumes += [each["value"] for each in read("bind.yaml", MODULE_IDS) if "/volumes/" in each["path"]]
    by_name = {volume["name"]: volume for volume in volumes}
    assert [volume for volume in volumes if by_name[volume["name"]] != volume] == []


def test_its_arguments_are_the_programs() -> None:
    serve = parameters("serve", [each["value"] for each in read("arguments.yaml")])
    (container,) = read("daemonset.yaml")["spec"]["template"]["spec"]["containers"]
    assert str(serve["state"]) in {mount["mountPath"] for mount in container["volumeMounts"]}
    assert serve["own_pod"] == "$(POD_NAMESPACE)/$(POD_NAME)"
    assert {each["name"] for each in container["env"]} == {"POD_NAMESPACE", "POD_NAME"}


@pytest.mark.parametrize("base", [PLUGIN, DRA], ids=["plugin", "dra"])
def test_it_patches_the_one_container_of_the_daemonset(base: Path) -> None:
    """Of the DRA driver too, which has its arguments from the plugin's base."""
    (container,) = read("daemonset.yaml", base)["spec"]["template"]["spec"]["containers"]
    assert "args" in container or "../plugin" in read("kustomization.yaml", base)["resources"]
    assert container["name"] == read("daemonset.yaml")["spec"]["template"]["spec"]["containers"][0]["name"]
    paths = {each["path"] for each in read("arguments.yaml")}
    assert paths == {"/spec/template/spec/containers/0/args/-"}
    named = [each["path"] for each in read("kustomization.yaml")["patches"]]
    assert sorted([*named, "kustomization.yaml"]) == sorted(path.name for path in FABRIC.iterdir())


def test_what_binds_has_the_nvidia_smi_of_the_nodes_driver() -> None:
    """A strategic merge would make a container where none binds; a JSON patch fails."""
    template = read("daemonset.yaml", BIND)["spec"]["template"]
    template = patched({"spec": {"template": template}}, read("bind.yaml", MODULE_IDS))["spec"]["template"]
    (binder,) = template["spec"]["initContainers"]
    command, *arguments = binder["args"]
    mounts = {mount["mountPath"]: mount["name"] for mount in binder["volumeMounts"]}
    chroot, root, program = parameters(command, arguments)["nvidia_smi"].split()
    assert (chroot, program) == ("chroot", "nvidia-smi")
    volumes = {volume["name"]: volume["hostPath"]["path"] for volume in template["spec"]["volumes"]}
    assert volumes[mounts[root]] == "/"
    state = {name for name, path in volumes.items() if path == "/var/lib/gpu-plugin"}
    assert mounts[str(parameters(command, arguments)["state"])] in state
    assert {volume["hostPath"]["path"] for volume in read("daemonset.yaml")["spec"]["template"]["spec"]["volumes"]} >= {
        volumes[name] for name in state
    }
    # Kubernetes takes none that is privileged and may not escalate.
    assert binder["securityContext"] == {"runAsUser": 0, "privileged": True, "readOnlyRootFilesystem": True}


def test_the_page_says_how_it_gets_there() -> None:
    assert [each["path"] for each in read("kustomization.yaml", MODULE_IDS)["patches"]] == ["bind.yaml"]
    for words in ("components/module-ids", "`/host/driver`", "`privileged`", "/run/nvidia/driver", "../deploy/dra"):
        assert words in PAGE
    # In the order in which they build on each other.
    assert PAGE.index("components/bind") < PAGE.index("components/fabric") < PAGE.index("components/module-ids")
