"""What a cluster applies to run the DRA driver: its files agree with each other, the program and docs/install.md."""

import re
from typing import Any

import yaml

from pci.slices import DRIVER
from plugin import startup
from plugin.cards.config import Serve
from plugin.config_file import read_config
from tests.deploy.test_plugin import BINDER, SERVE, UNMOUNTED, Container
from tests.processes import ROOT

DRA = ROOT / "deploy" / "dra"
WHEN_CLAIMED = DRA / "components" / "when-claimed"
PAGE, CHOOSING = ((ROOT / "docs" / name).read_text() for name in ("install.md", "choosing.md"))


def read(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DRA / name).read_text()))


def test_the_kustomization_names_every_manifest_beside_it_and_nothing_else() -> None:
    (kustomization,) = read("kustomization.yaml")
    (generator,) = kustomization["configMapGenerator"]
    named = {*kustomization["resources"], *generator["files"], *(patch["path"] for patch in kustomization["patches"])}
    assert named == {"../plugin", *(path.name for path in DRA.glob("*.yaml"))} - {"kustomization.yaml"}
    assert all((DRA / name).exists() for name in named)


def test_the_config_serves_everything_by_dra() -> None:
    assert read_config(DRA / "config.yaml").serve is Serve.DRA


def test_the_driver_finds_its_directories_and_node_where_the_pod_has_them() -> None:
    (daemonset,) = read("daemonset.yaml")
    pod = daemonset["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (node,) = container["env"]
    assert (node["name"], node["valueFrom"]["fieldRef"]["fieldPath"]) == ("NODE_NAME", "spec.nodeName")
    places = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    flags = startup.ServeFlags()
    assert set(places.values()) == {
        str(startup._PLUGINS_REGISTRY), str(flags.dra_state), str(flags.cdi), str(flags.state)
    }  # fmt: skip
    # What the runtime and the kubelet are told is a path of the node.
    assert places == {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    assert pod["automountServiceAccountToken"] is True


def _when_claimed() -> Container:
    """The driver's container with the component, as kustomize puts them together."""
    (driver,) = read("daemonset.yaml")
    (component,) = read("components/when-claimed/daemonset.yaml")
    (arguments,) = yaml.safe_load((WHEN_CLAIMED / "arguments.yaml").read_text())
    assert (arguments["op"], arguments["path"]) == ("add", "/spec/template/spec/containers/0/args/-")
    manifest = SERVE.manifest
    (plugin,) = read("../plugin/daemonset.yaml")
    volumes = {volume["name"]: volume for volume in plugin["spec"]["template"]["spec"]["volumes"]}
    for patch in (driver, component):
        pod = patch["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert container["name"] == manifest["name"]
        assert not volumes.keys() & {volume["name"] for volume in pod["volumes"]}
        volumes |= {volume["name"]: volume for volume in pod["volumes"]}
        security = {**manifest["securityContext"], **container.get("securityContext", {})}
        security["capabilities"] = {**manifest["securityContext"]["capabilities"], **security["capabilities"]}
        mounts = [*manifest["volumeMounts"], *container["volumeMounts"]]
        manifest = {**manifest, "securityContext": security, "volumeMounts": mounts}
    args = [*manifest["args"], arguments["value"], "--node-name=node-1"]  # the latter by a variable
    return Container({**manifest, "args": args}, SERVE.pod, volumes)


def test_the_component_names_every_file_beside_it_and_leaves_the_config_to_the_overlay() -> None:
    """kustomize adds a component after the overlay's own config, and would put the component's in its place."""
    kustomization = yaml.safe_load((WHEN_CLAIMED / "kustomization.yaml").read_text())
    assert {patch["path"] for patch in kustomization["patches"]} == {path.name for path in WHEN_CLAIMED.iterdir()} - {
        "kustomization.yaml"
    }
    assert "configMapGenerator" not in kustomization


def test_the_driver_that_binds_has_what_it_goes_by_and_the_binders_rights() -> None:
    container = _when_claimed()
    paths, mounts = container.paths() - UNMOUNTED, set(container.mounts)
    assert not {path for path in paths if not {path, *path.parents} & mounts}
    binder = BINDER.manifest["securityContext"]
    for word in ("capabilities", "appArmorProfile", "seLinuxOptions", "seccompProfile", "readOnlyRootFilesystem"):
        assert container.manifest["securityContext"][word] == binder[word]
    for path, mount in BINDER.mounts.items():
        ours = container.mounts[path]
        assert {"readOnly": False, **ours, "name": ""} == {"readOnly": False, **mount, "name": ""}
        assert container.volumes[ours["name"]] == BINDER.volumes[mount["name"]]


def test_the_page_says_what_each_mount_and_right_of_the_component_is_for() -> None:
    rows = PAGE.split("\n| with `components/when-claimed` | why |\n")[1].split("\n\n")[0]
    left = {cell for row in rows.splitlines() for cell in re.findall(r"`([^`]+)`", row.split("|")[1])}
    (component,) = read("components/when-claimed/daemonset.yaml")
    (container,) = component["spec"]["template"]["spec"]["containers"]
    security = container["securityContext"]
    rights = {*security["capabilities"]["add"], security["appArmorProfile"]["type"], security["seLinuxOptions"]["type"]}
    (rule,) = yaml.safe_load((WHEN_CLAIMED / "claims.yaml").read_text())
    rights |= {*rule["value"]["resources"], *rule["value"]["verbs"]}
    assert left == {*rights, *(mount["mountPath"] for mount in container["volumeMounts"])}


def test_the_policy_is_about_the_account_that_the_role_is_bound_to() -> None:
    role, binding = read("rbac.yaml")
    (subject,) = binding["subjects"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    account = f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
    admission = read("admission.yaml")
    for policy, policy_binding in zip(admission[::2], admission[1::2], strict=True):
        (condition,) = policy["spec"]["matchConditions"]
        assert condition["expression"] == f'request.userInfo.username == "{account}"'
        assert (policy_binding["spec"]["policyName"], policy_binding["spec"]["validationActions"]) == (
            policy["metadata"]["name"],
            ["Deny"],
        )
        said = [*policy["spec"]["validations"], *policy["spec"]["variables"]]
        assert any(f'"{DRIVER}"' in each["expression"] for each in said)


def test_the_class_is_of_the_driver() -> None:
    (device_class,) = read("deviceclasses.yaml")
    (selector,) = device_class["spec"]["selectors"]
    assert device_class["metadata"]["name"] == DRIVER
    assert selector["cel"]["expression"] == f'device.driver == "{DRIVER}"'


def test_the_page_says_what_each_mount_and_right_is_for() -> None:
    rows = PAGE.split("\n| what | why |\n")[1].split("\n\n")[0]
    left = {cell for row in rows.splitlines() for cell in re.findall(r"`([^`]+)`", row.split("|")[1])}
    role, _ = read("rbac.yaml")
    rights = {word for rule in role["rules"] for word in (*rule["resources"], *rule["verbs"])}
    (daemonset,) = read("daemonset.yaml")
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    (policy,) = read("networkpolicy.yaml")
    ports = {str(port["port"]) for rule in policy["spec"]["egress"] for port in rule["ports"]}
    assert left == {*rights, *mounts, *ports, "NODE_NAME"}


def test_the_page_has_every_attribute() -> None:
    from pci import slices

    table = CHOOSING.split("| attribute |")[1].split("\n## ")[0]
    texts = {name: value for name, value in vars(slices).items() if name.isupper() and isinstance(value, str)}
    # A number follows the last: `partition2`.
    attributes = texts.keys() - {"DRIVER", "UNHEALTHY", "CORDONED", "TEAM", "PARTITION"}
    assert not {name for name in attributes if f"`{texts[name].rpartition('/')[2]}`" not in table}


def test_the_claim_that_the_page_shows_is_yaml_of_the_driver() -> None:
    section = CHOOSING.split("\n## Claims of your own\n")[1].split("\n##")[0]
    (block,) = re.findall(r"(?:^    .*\n)+", section, re.MULTILINE)
    template = yaml.safe_load(block)
    assert template["kind"] == "ResourceClaimTemplate"
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == DRIVER
    assert DRIVER in request["exactly"]["selectors"][0]["cel"]["expression"]
