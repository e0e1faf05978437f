"""The component for nodes with a Fabric Manager: it fits DaemonSet and program, and docs/fabric.md explains it."""

from typing import Any

import yaml

from tests.processes import ROOT

PLUGIN = ROOT / "deploy" / "plugin"
FABRIC = PLUGIN / "components" / "fabric"


def read(name: str) -> Any:
    return yaml.safe_load((FABRIC / name).read_text())


def test_every_mount_has_its_volume_and_its_reason() -> None:
    pod = read("daemonset.yaml")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    page = (ROOT / "docs" / "fabric.md").read_text()
    for mount in container["volumeMounts"]:
        assert f"| `{mount['mountPath']}` |" in page
    for label in pod["nodeSelector"]:
        assert label in page


def test_its_volumes_have_names_of_their_own() -> None:
    """Beside those of the DaemonSet and of the component that binds."""
    its = {volume["name"] for volume in read("daemonset.yaml")["spec"]["template"]["spec"]["volumes"]}
    for other in (PLUGIN / "daemonset.yaml", PLUGIN / "components" / "bind" / "daemonset.yaml"):
        pod = yaml.safe_load(other.read_text())["spec"]["template"]["spec"]
        assert its.isdisjoint(volume["name"] for volume in pod["volumes"])


def test_its_arguments_are_the_programs() -> None:
    from typer.core import TyperGroup
    from typer.main import get_command

    from plugin.cli import command_line

    group = get_command(command_line(["serve"]))
    assert isinstance(group, TyperGroup)
    arguments = [each["value"] for each in read("arguments.yaml")]
    parameters = group.commands["serve"].make_context("serve", arguments).params
    (container,) = read("daemonset.yaml")["spec"]["template"]["spec"]["containers"]
    assert str(parameters["state"]) in {mount["mountPath"] for mount in container["volumeMounts"]}
    assert parameters["own_pod"] == "$(POD_NAMESPACE)/$(POD_NAME)"
    assert {each["name"] for each in container["env"]} == {"POD_NAMESPACE", "POD_NAME"}


def test_it_patches_the_one_container_of_the_daemonset() -> None:
    daemonset = yaml.safe_load((PLUGIN / "daemonset.yaml").read_text())
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    assert container["name"] == read("daemonset.yaml")["spec"]["template"]["spec"]["containers"][0]["name"]
    paths = {each["path"] for each in read("arguments.yaml")}
    assert paths == {"/spec/template/spec/containers/0/args/-"}
    named = [each["path"] for each in read("kustomization.yaml")["patches"]]
    assert sorted([*named, "kustomization.yaml"]) == sorted(path.name for path in FABRIC.iterdir())
