"""What a cluster applies to run the hook beside KubeVirt: its files agree with each other and with the program. The lab
shows that the API server takes the policy."""

import re
from pathlib import PurePosixPath
from typing import Any

import yaml
from cel_expr_python import cel

from launcher.pod import kubevirt
from launcher.pod.claims import CLAIM
from launcher.vm.cards import annotations
from launcher.vm.cards.claims import EntryKind
from tests.conftest import Command
from tests.deploy.test_images import VERSION
from tests.processes import ROOT

HOOK = ROOT / "deploy" / "hook"
#: Where virt-launcher looks for plugins' sockets, and the volume that KubeVirt has mounted there.
SOCKETS, VOLUME = PurePosixPath("/var/run/kubevirt-plugin"), "kubevirt-plugin-sockets"


def read(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((HOOK / name).read_text()))


def added_container() -> dict[str, Any]:
    """The container of the policy's patch: without the names of types, its CEL is YAML."""
    policy, _ = read("plugin-policy.yaml")
    (mutation,) = policy["spec"]["mutations"]
    # An ApplyConfiguration would be refused: it may not have the args of a container.
    assert mutation["patchType"] == "JSONPatch"
    (patch,) = yaml.safe_load(re.sub(r"\b(?:JSONPatch|Object[.\w]*)\{", "{", mutation["jsonPatch"]["expression"]))
    assert (patch["op"], patch["path"]) == ("add", "/spec/containers/-")
    return dict(patch["value"])


def test_the_images_are_of_this_version() -> None:
    pages = (ROOT / "docs" / name for name in ("beside-kubevirt.md", "moving.md"))
    texts = [path.read_text() for path in (*HOOK.iterdir(), *pages)]
    assert {tag for text in texts for tag in re.findall(r"gpu-launcher:(\d[\d.]*\d)", text)} == {VERSION}


def test_the_policys_container_listens_where_the_plugin_is_looked_for() -> None:
    (plugin,) = read("plugin.yaml")
    (hook,) = plugin["spec"]["domainHooks"]
    socket = PurePosixPath(hook["sidecar"]["socketPath"])
    name = plugin["metadata"]["name"]
    assert (socket.parent, socket.suffix) == (SOCKETS / name, ".sock")
    container = added_container()
    (mount,) = container["volumeMounts"]
    assert mount == {"name": VOLUME, "mountPath": str(SOCKETS / name), "subPath": name}
    assert container["args"] == ["hook", "--plugin", "--socket", str(socket)]
    assert container["image"] == f"gpu-launcher:{VERSION}"


def test_the_policys_container_may_run_in_a_restricted_namespace_and_a_guaranteed_pod() -> None:
    container = added_container()
    security = container["securityContext"]
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert (security["runAsNonRoot"], security["allowPrivilegeEscalation"]) == (True, False)
    resources = container["resources"]
    assert resources["requests"] == resources["limits"]
    assert resources["limits"].keys() == {"cpu", "memory"}


def test_the_policy_is_bound_and_leaves_other_pods_alone() -> None:
    policy, binding = read("plugin-policy.yaml")
    assert binding["spec"] == {"policyName": policy["metadata"]["name"]}
    assert policy["spec"]["matchConstraints"]["objectSelector"] == {"matchLabels": {"kubevirt.io": "virt-launcher"}}
    (condition,) = policy["spec"]["matchConditions"]
    compiled = cel.NewEnv(variables={"object": cel.Type.DYN}).compile(condition["expression"])
    specs: list[dict[str, Any]] = [{"volumes": [{"name": VOLUME}]}, {"volumes": [{"name": "other"}]}, {}]
    assert [compiled.eval(data={"object": {"spec": spec}}).value() for spec in specs] == [True, False, False]


def test_gpu_launcher_takes_the_vm_as_it_is(gpu_launcher: Command) -> None:
    """One manifest for both launchers: the hook's annotation says nothing to ours."""
    printed = gpu_launcher("pod", HOOK / "vm.yaml")
    assert printed.returncode == 0, printed.stderr


def test_the_vm_asks_for_the_sidecar_by_annotation() -> None:
    (vm,) = read("vm.yaml")
    (kubevirt,) = read("kubevirt.yaml")
    annotations = vm["spec"]["template"]["metadata"]["annotations"]
    (sidecar,) = yaml.safe_load(annotations["hooks.kubevirt.io/hookSidecars"])
    assert sidecar == {"image": f"gpu-launcher:{VERSION}", "args": ["hook"]}
    assert kubevirt["spec"]["configuration"]["developerConfiguration"]["featureGates"] == ["Sidecar"]


def test_the_policies_go_by_the_annotations_that_choose_and_by_what_a_template_says() -> None:
    claims, binding, refusal, _ = read("claims-policy.yaml")
    resources, words = (condition["expression"] for condition in claims["spec"]["matchConditions"])
    for expression in (words, refusal["spec"]["variables"][0]["expression"]):
        assert yaml.safe_load(re.match(r"\[.*?\]", expression)[0]) == list(annotations.Word)  # type: ignore[index]
    assert f'params.metadata.?annotations["{kubevirt.DEVICE_NAMES}"]' in resources
    assert binding["spec"]["paramRef"]["selector"]["matchLabels"] == {kubevirt.LABEL: kubevirt.LABEL_VALUE}
    texts = [mutation["jsonPatch"]["expression"] for mutation in claims["spec"]["mutations"]]
    assert all(f'"{CLAIM}"' in text for text in (*texts, refusal["spec"]["validations"][0]["expression"]))
    assert [set(re.findall(r'"(\w+)-" \+ string', text)) for text in texts] == [
        set(),
        {EntryKind.GPU},
        {EntryKind.HOST_DEVICE},
    ]
