"""`fit` says what a namespace may not have: by a ResourceQuota, and by the ConfigMap of deploy/tenants."""

from typing import Any

import pytest

from launcher.choosing.cluster import cluster_of
from launcher.choosing.fit import Fit, as_text, fit_of
from launcher.choosing.obstacles import asking
from launcher.choosing.requirements import NamedClaim
from launcher.vm.cards.annotations import read_selection
from launcher.vm.cards.claims import Entry, EntryKind
from program.errors import UserError
from tests.clusters import KVM, RTX_3090, machine, node_of, pod_on, slices_of

Object = dict[str, Any]
L40S = "nvidia.com/L40S-24Q"
CLASS = "gpu-launcher.dev.deviceclass.resource.k8s.io/devices"
NODES = [node_of("rtx", {RTX_3090: "2"}), *slices_of(machine("two-rtx-3090"), "rtx")]


def config_map(**namespaces: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gpu-namespaces", "namespace": "kube-system"},
            "data": namespaces}  # fmt: skip


def quota(hard: dict[str, str], used: dict[str, str], **spec: Any) -> Object:
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus", "namespace": "red"},
            "spec": {"hard": hard, **spec}, "status": {"hard": hard, "used": used}}  # fmt: skip


def by_plugin(*objects: Object, namespace: str = "red") -> Fit:
    """Of a new pod with a card, of a device plugin."""
    pod = pod_on(None, "vm", {RTX_3090: "1", KVM: "1", "cpu": "2"})
    return fit_of(f"{namespace}/vm", namespace, (), read_selection({}), (), cluster_of([NODES[0], *objects]),
                  dra=False, pod=asking(pod))  # fmt: skip


def by_dra(*objects: Object, namespace: str = "red", **annotations: str) -> Fit:
    """Of a new VM with a card, by DRA."""
    entries = [Entry(kind=EntryKind.GPU, name="gpu1", wants=RTX_3090)]
    selection = read_selection(annotations)
    return fit_of(f"{namespace}/vm", namespace, entries, selection, (), cluster_of([*NODES[1:], *objects]))


BOTH = pytest.mark.parametrize("asks", [by_plugin, by_dra])


@BOTH
@pytest.mark.parametrize("line", [RTX_3090, "nvidia.com/*", "*", f"# cards\n  {L40S}\n{RTX_3090}\n"])
def test_a_namespace_may_have_what_its_lines_name(asks: Any, line: str) -> None:
    assert asks(config_map(red=line)).fitting
    assert asks(config_map(_others=line)).fitting


@BOTH
def test_another_device_is_refused_with_what_the_namespace_may_have(asks: Any) -> None:
    result = asks(config_map(red=f"{L40S}\nnvidia.com/A1*", _others="*"))
    assert not result.fitting
    assert result.answer == (
        f"namespace red may not have {RTX_3090}: it may have {L40S}, nvidia.com/A1*",
        "ask for what it may have, or ask whoever runs the cluster: docs/tenants.md",
    )
    assert as_text(result).splitlines()[1].startswith(f"namespace red may not have {RTX_3090}: ")


def test_a_namespace_without_lines_has_those_of_the_others() -> None:
    refused = by_plugin(config_map(blue="*")).answer
    assert refused is not None
    assert refused[0] == f"namespace red may not have {RTX_3090}: it may have no devices"


def test_the_class_allows_all_its_devices() -> None:
    assert by_dra(config_map(red="gpu-launcher.dev")).fitting
    assert not by_plugin(config_map(red="gpu-launcher.dev")).fitting


def test_a_claim_by_cel_needs_the_class() -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu-launcher.dev"}}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "own", "namespace": "red"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    objects = [*NODES[1:], template, config_map(red=RTX_3090)]
    claims = [NamedClaim("own", "ResourceClaimTemplate", "own")]
    result = fit_of("red/vm", "red", (), read_selection({}), claims, cluster_of(objects))
    assert result.answer is not None
    assert result.answer[0] == f"namespace red may not have DeviceClass gpu-launcher.dev: it may have {RTX_3090}"


@pytest.mark.parametrize(("asks", "name"), [(by_plugin, f"requests.{RTX_3090}"), (by_dra, CLASS), (by_plugin, "cpu")])
def test_a_quota_that_is_used_up_is_named_with_its_numbers(asks: Any, name: str) -> None:
    assert asks(quota({name: "4"}, {name: "2"})).fitting
    assert asks(quota({name: "4"}, {name: "4"}), namespace="blue").fitting
    answer = asks(quota({name: "4"}, {name: "4"})).answer
    of, count = name.removeprefix("requests."), 2 if name == "cpu" else 1
    assert answer == (
        f"namespace red may not have more: its quota gpus is 4 {of}, of which 4 is used, and {count} is asked for",
        "stop what uses it, or have the quota raised: `kubectl describe quota`",
    )


def test_a_quota_of_some_pods_is_not_judged() -> None:
    assert by_plugin(quota({"cpu": "1"}, {"cpu": "1"}, scopes=["BestEffort"])).fitting


def test_a_pod_that_is_there_was_taken_already() -> None:
    pod = pod_on(None, "vm", {RTX_3090: "1"})
    pod["metadata"]["namespace"] = "red"
    assert by_plugin(pod, quota({f"requests.{RTX_3090}": "1"}, {f"requests.{RTX_3090}": "1"})).fitting


def test_a_config_map_with_anything_but_text_is_refused() -> None:
    with pytest.raises(UserError, match="ConfigMap kube-system/gpu-namespaces: data has a value that is no text"):
        by_plugin(config_map(red=["x"]))  # type: ignore[arg-type]
