"""kubectl gpuvm map, as a process: what it asks of the cluster, and the page."""

import json

from pci.cordons import CONFIG_MAP
from tests.clusters import machine, node_of, pod_on, slices_of
from tests.conftest import Command
from tests.gpuvm.cluster import CARD
from tests.gpuvm.standin import StandIn

ALL = ["--all-namespaces", "--ignore-not-found", "-o", "json"]
UNSERVED = 'error: the server doesn\'t have a resource type "devicetaintrules"'


def test_it_asks_for_the_whole_cluster_and_prints_a_page(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    value = json.dumps({"by": "alice", "since": "2026-11-29T18:20:00Z", "why": "its fan"})
    data = {"gpu-1.0000-41-00.0": value, "gpu-2.0000-01-00.0": value}
    names = {"name": CONFIG_MAP, "namespace": "kube-system"}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": names, "data": data}
    kubectl.answers(f"get configmap/{CONFIG_MAP} --namespace=kube-system", [config_map])
    kubectl.answers("get nodes,pods", [node_of("gpu-1"), pod_on("gpu-1", "train", {CARD: "3"})])
    kubectl.answers("get resourceslices,resourceclaims", slices_of(machine("two-rtx-3090"), "gpu-2"))
    kubectl.answers("get devicetaintrules", err=UNSERVED, code=1)
    result = kubectl_gpuvm("map", env=kubectl.env)
    assert (result.stderr, result.returncode) == ("", 0)
    assert result.stdout.startswith("<!doctype html>")
    assert "<h1>2 nodes, 6 cards: 2 free, 3 taken, 1 unavailable</h1>" in result.stdout
    since = "taken out of service by alice on 2026-11-29 18:20 UTC (its fan)"
    assert f"<p>0000:41:00.0 was {since}</p>" in result.stdout, (
        "of a device plugin's cards it is not known which is which"
    )
    assert f'<li class="unavailable">0000:01:00.0: {since}</li>' in result.stdout
    assert kubectl.calls[1:] == [
        ["kubectl", "get", kinds, *ALL] for kinds in ("nodes,pods", "resourceslices,resourceclaims", "devicetaintrules")
    ]


def test_who_may_not_list_nodes_is_told_so(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    kubectl.answers("get nodes,pods", err="Error from server (Forbidden): nodes is forbidden", code=1)
    result = kubectl_gpuvm("map", env=kubectl.env)
    assert "kubectl: Error from server (Forbidden): nodes is forbidden; ask for that right" in result.stderr
    assert (result.stdout, result.returncode) == ("", 1)
