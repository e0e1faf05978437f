"""kubectl gpuvm map, as a process: what it asks of the cluster, and the page."""

from tests.clusters import machine, node_of, pod_on, slices_of
from tests.conftest import Command
from tests.gpuvm.cluster import CARD
from tests.gpuvm.standin import StandIn

ALL = ["--all-namespaces", "--ignore-not-found", "-o", "json"]
UNSERVED = 'error: the server doesn\'t have a resource type "devicetaintrules"'


def test_it_asks_for_the_whole_cluster_and_prints_a_page(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    kubectl.answers("get nodes,pods", [node_of("gpu-1"), pod_on("gpu-1", "train", {CARD: "3"})])
    kubectl.answers("get resourceslices,resourceclaims", slices_of(machine("two-rtx-3090"), "gpu-2"))
    kubectl.answers("get devicetaintrules", err=UNSERVED, code=1)
    result = kubectl_gpuvm("map", env=kubectl.env)
    assert (result.stderr, result.returncode) == ("", 0)
    assert result.stdout.startswith("<!doctype html>")
    assert "<h1>2 nodes, 6 cards: 3 free, 3 taken</h1>" in result.stdout
    assert kubectl.calls == [
        ["kubectl", "get", kinds, *ALL] for kinds in ("nodes,pods", "resourceslices,resourceclaims", "devicetaintrules")
    ]


def test_who_may_not_list_nodes_is_told_so(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    kubectl.answers("get nodes,pods", err="Error from server (Forbidden): nodes is forbidden", code=1)
    result = kubectl_gpuvm("map", env=kubectl.env)
    assert "kubectl: Error from server (Forbidden): nodes is forbidden; ask for that right" in result.stderr
    assert (result.stdout, result.returncode) == ("", 1)
