"""kubectl gpuvm cordon and uncordon, as a process over a stand-in for kubectl: what is written, and what is said."""

import json

import pytest

from pci.address import PCIAddress
from pci.cordons import CONFIG_MAP, Cordon, card_of, key_of, read_cordons
from tests.conftest import Command
from tests.gpuvm.cluster import holding, pod
from tests.gpuvm.standin import StandIn

CARD, ADDRESS, KEY = "gpu-1/0000:41:00.0", "0000:41:00.0", "gpu-1.0000-41-00.0"
WHOAMI = {"status": {"userInfo": {"username": "alice"}}}
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1"}}
FORBIDDEN = "Error from server (Forbidden): pods is forbidden"


def known(kubectl: StandIn, **data: str) -> None:
    names = {"name": CONFIG_MAP, "namespace": "kube-system"}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": names, "data": data}
    kubectl.answers(f"get configmap/{CONFIG_MAP}", [config_map])
    kubectl.answers("get node/gpu-1", [NODE])
    kubectl.answers("get node/", [])
    kubectl.answers("auth whoami", WHOAMI)
    kubectl.answers("patch")


def patched(kubectl: StandIn) -> list[dict[str, str | None]]:
    calls = [call for call in kubectl.calls if "patch" in call]
    for call in calls:
        assert call[1:5] == ["--namespace=kube-system", "patch", f"configmap/{CONFIG_MAP}", "--type=merge"]
    return [json.loads(call[-1])["data"] for call in calls]


def test_a_card_is_out_of_service_by_one_key_that_says_who_did_it(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    known(kubectl)
    claim = holding("train", "pci-0000-41-00-0")
    claim["status"]["reservedFor"] = [{"resource": "pods", "name": "desk", "uid": "1"}]
    kubectl.answers("get pods,deployments", [])
    kubectl.answers("get resourceclaims", [claim, holding("other", "pci-0000-61-00-0")])
    result = kubectl_gpuvm("cordon", CARD, "--reason", "its fan", env=kubectl.env)
    assert (result.stderr, result.returncode) == ("", 0)
    ((key, value),) = (change for data in patched(kubectl) for change in data.items())
    assert key == KEY
    its = json.loads(str(value))
    assert (its["by"], its["why"]) == ("alice", "its fan")
    assert result.stdout == (
        f"{CARD}: is out of service as soon as the node hears of it, in about a minute; "
        "claim vms/train of desk keeps it\n"
    )


@pytest.mark.parametrize("device", ["pci-0000-41-00-0", "vgpu-0000-41-00-0-l40s-24q-3"])
def test_a_vgpu_of_the_card_counts_as_the_card(kubectl_gpuvm: Command, kubectl: StandIn, device: str) -> None:
    known(kubectl)
    kubectl.answers("get pods,deployments", [])
    kubectl.answers("get resourceclaims", [holding("train", device)])
    assert "claim vms/train keeps it" in kubectl_gpuvm("cordon", CARD, env=kubectl.env).stdout


def test_by_a_device_plugin_the_kubelet_says_who_has_the_card(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    known(kubectl)
    resources = [{"name": "nvidia.com/pgpu", "resources": [{"resourceID": ADDRESS, "health": "Healthy"}]}]
    vm = pod("desk", node="gpu-1")
    vm["status"]["containerStatuses"][0]["allocatedResourcesStatus"] = resources
    kubectl.answers("get pods,deployments", [vm, pod("other", node="gpu-1")])
    kubectl.answers("get resourceclaims", err="the server doesn't have a resource type", code=1)
    assert "pod vms/desk keeps it" in kubectl_gpuvm("cordon", CARD, env=kubectl.env).stdout


def test_who_may_not_see_the_pods_is_told_that_it_is_not_known(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    known(kubectl)
    kubectl.answers("get pods,deployments", err=FORBIDDEN, code=1)
    result = kubectl_gpuvm("cordon", CARD, env=kubectl.env)
    assert f"who has it is not known here ({FORBIDDEN})" in result.stdout
    assert (result.returncode, len(patched(kubectl))) == (0, 1)


def test_a_card_that_is_out_of_service_stays_whose_it_is(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    known(kubectl, **{KEY: json.dumps({"by": "bob", "since": "2026-11-29T18:20:00Z", "why": "its fan"})})
    refused = kubectl_gpuvm("cordon", CARD, env=kubectl.env)
    assert f"{CARD}: was taken out of service already, by bob on 2026-11-29 18:20 UTC (its fan)" in refused.stderr
    assert (refused.returncode, patched(kubectl)) == (1, [])
    back = kubectl_gpuvm("uncordon", CARD, env=kubectl.env)
    assert (back.stderr, back.returncode, patched(kubectl)) == ("", 0, [{KEY: None}])
    assert "it was taken out of service by bob" in back.stdout


def test_what_is_no_card_no_node_or_in_service_is_refused(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    known(kubectl)
    for words, wrong, code in (
        (("cordon", "41:00.0"), "41:00.0: is no card of a node", 2),
        (("cordon", "gpu-1/41"), "gpu-1/41: is no card of a node", 2),
        (("cordon", f"--x/{ADDRESS}"), "No such option", 2),
        (("cordon", f"gpu-2/{ADDRESS}"), "node gpu-2: is not there", 1),
        (("uncordon", CARD), f"{CARD}: is not out of service", 1),
    ):
        result = kubectl_gpuvm(*words, env=kubectl.env)
        assert (wrong in result.stderr, result.returncode) == (True, code), result.stderr
    assert patched(kubectl) == []


def test_without_the_config_map_the_plugin_is_another_version_or_elsewhere(
    kubectl_gpuvm: Command, kubectl: StandIn
) -> None:
    kubectl.answers("get configmap", [])
    result = kubectl_gpuvm("cordon", CARD, "-n", "gpus", env=kubectl.env)
    assert f"ConfigMap {CONFIG_MAP}: is not there; apply deploy/plugin of this version" in result.stderr
    assert kubectl.calls[0][1] == "--namespace=gpus"


def test_a_key_is_read_back_whatever_the_node_is_called() -> None:
    address = PCIAddress.parse("10000:e1:00.3")
    for node in ("gpu-1", "gpu-1.example.com", "a.0000-41-00.0"):
        assert card_of(key_of(node, address)) == (node, address)
    assert card_of("gpu-1") is None


def test_a_value_that_nobody_wrote_so_leaves_the_card_out_of_service() -> None:
    """Whoever writes there by hand means it; and no text steers a terminal or fills a page."""
    texts = ("", "{", "[]", '{"by": 1}', "[" * 100_000, '{"by": "\\u001b[2J\\nal", "why": "' + "x" * 9999 + '"}')
    read = read_cordons({f"n.0000-41-00.{number}": text for number, text in enumerate(texts)})
    assert [*read.values()][:5] == [Cordon()] * 5
    assert str(Cordon()) == "by nobody knows whom"
    assert [*read.values()][5] == Cordon(by="[2Jal", why="x" * 200)
