"""What of a node speaks against a VM's pod, in the scheduler's numbers; without DRA, and beside it."""

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pytest

from launcher.choosing.affinity import affinity_of
from launcher.choosing.cluster import cluster_of
from launcher.choosing.fit import Fit, as_json, as_text, fit_of
from launcher.choosing.nodes import requests_of
from launcher.choosing.obstacles import asking
from launcher.choosing.requirements import NamedClaim
from launcher.vm.cards.annotations import read_selection
from launcher.vm.cards.claims import Entry, EntryKind
from program.errors import UserError
from tests.clusters import KVM, RTX_3090, machine, node_of, pod_on, slices_of

Object = dict[str, Any]
GPU = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
CARD = {RTX_3090: "1", KVM: "1", "cpu": "100m", "memory": "2428Mi"}


def fit(objects: Sequence[Object], requests: Mapping[str, str] | None = None, spec: Object | None = None) -> Fit:
    """Of a pod that asks for a card, CPUs and memory."""
    pod = pod_on(None, "vm", {**CARD, **(requests or {})}, spec=spec)
    return fit_of("vms/vm", "vms", (), read_selection({}), (), cluster_of(objects), dra=False, pod=asking(pod))


def against(result: Fit, node: str) -> list[str]:
    return [each.text for each in result.obstacles[node]]


def containers(*requests: Object, sidecars: Sequence[Object] = (), init: Sequence[Object] = (), **spec: Any) -> Object:
    def made(amounts: Object, **more: str) -> Object:
        return {"name": "c", "resources": {"requests": amounts}, **more}

    its = [made(each) for each in requests]
    first = [*(made(each, restartPolicy="Always") for each in sidecars), *(made(each) for each in init)]
    return pod_on("n", "p", spec={"containers": its, "initContainers": first, **spec})


@pytest.mark.parametrize(
    ("pod", "cpus"),
    [
        (containers({"cpu": "1"}, {"cpu": "500m"}), "1.5"),
        (containers({"cpu": "1"}, init=[{"cpu": "3"}, {"cpu": "2"}]), "3"),
        (containers({"cpu": "1"}, init=[{"cpu": "500m"}]), "1"),
        (containers({"cpu": "1"}, sidecars=[{"cpu": "200m"}, {"cpu": "200m"}]), "1.4"),
        # An init container runs beside the sidecars before it.
        (containers({"cpu": "1"}, sidecars=[{"cpu": "1"}], init=[{"cpu": "3"}]), "4"),
        (containers({"cpu": "1"}, overhead={"cpu": "250m"}), "1.25"),
        (containers({"cpu": "1"}, resources={"requests": {"cpu": "2", "example.com/x": "9"}}), "2"),
        (pod_on("n", "p", spec={"containers": [{"name": "c", "resources": {"limits": {"cpu": "2"}}}]}), "2"),
    ],
)
def test_a_pod_asks_for_what_the_scheduler_counts(pod: Object, cpus: str) -> None:
    assert requests_of(pod) == {"cpu": Decimal(cpus)}


def test_a_container_that_is_resized_has_what_it_had_until_then() -> None:
    pod = containers({"cpu": "1"})
    has = {"name": "c", "resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"cpu": "3"}}
    pod["status"]["containerStatuses"] = [has]
    assert requests_of(pod) == {"cpu": Decimal(3)}


def test_a_node_with_room_says_what_it_has() -> None:
    ended = [pod_on("one", f"old-{phase}", {RTX_3090: "4"}, phase=phase) for phase in ("Succeeded", "Failed")]
    result = fit([node_of("one"), pod_on("one", "a", {RTX_3090: "1", "memory": "1Gi"}), *ended])
    assert as_text(result) == (
        "vms/vm fits on 1 of 1 node.\n\n"
        "NODE  cpu            memory                   nvidia.com/GA102_GEFORCE_RTX_3090\n"
        "one   16 of 16 free  31744Mi of 32768Mi free  3 of 4 free\n"
    )


def test_all_that_speaks_against_a_node_is_told_with_who_has_what() -> None:
    pods = [pod_on("one", name, {RTX_3090: "1", "memory": "8Gi"}) for name in "abcd"]
    who = "(ml/a has 8192Mi, ml/b has 8192Mi, ml/c has 8192Mi and 1 more)"
    result = fit([node_of("one", taints=[GPU], cordoned=True), *pods])
    assert against(result, "one") == [
        "has the taint gpu=yes:NoSchedule",
        "is cordoned",
        f"has 0 of 4 {RTX_3090} free and 1 is asked for (ml/a has 1, ml/b has 1, ml/c has 1 and 1 more)",
        f"has 0Mi of 32768Mi memory free and 2428Mi are asked for {who}",
    ]


@pytest.mark.parametrize(
    ("node", "asked", "text"),
    [
        (node_of("n", {RTX_3090: "2"}), {RTX_3090: "3"}, f"has 2 {RTX_3090} in all and 3 are asked for"),
        (
            node_of("n", capacity={RTX_3090: "6"}),
            {RTX_3090: "5"},
            f"has 6 {RTX_3090}, of which 4 are healthy, and 5 are asked for",
        ),
        (
            node_of("n", {RTX_3090: "0"}, capacity={RTX_3090: "4"}),
            {},
            f"has 4 {RTX_3090}, of which 0 are healthy, and 1 is asked for",
        ),
        (node_of("n", {RTX_3090: "0"}), {}, f"has no {RTX_3090}"),
        (node_of("n"), {"hugepages-1Gi": "4Gi"}, "has no hugepages-1Gi"),
        (node_of("n"), {"memory": "64Gi"}, "has 32768Mi memory in all and 65536Mi are asked for"),
        (node_of("n"), {"cpu": "16500m"}, "has 16 cpu in all and 16.5 are asked for"),
        (node_of("n", {"pods": "0"}), {}, "has 0 pods, as many as it takes"),
    ],
)
def test_what_a_node_has_too_little_of(node: Object, asked: dict[str, str], text: str) -> None:
    assert against(fit([node], asked), "n") == [text]


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "value": "yes", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "value": "no"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
    ],
)
def test_a_toleration_is_matched_as_kubernetes_does(toleration: Object, *, tolerates: bool) -> None:
    soft = {"key": "later", "effect": "PreferNoSchedule"}
    result = fit([node_of("n", taints=[GPU, soft])], spec={"tolerations": [toleration]})
    assert bool(result.fitting) == tolerates


def test_a_pod_may_go_to_a_cordoned_node() -> None:
    toleration = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}
    assert fit([node_of("n", cordoned=True)], spec={"tolerations": [toleration]}).fitting


@pytest.mark.parametrize(
    ("requirement", "matches"),
    [
        ({"key": "rack", "operator": "In", "values": ["1", "2"]}, True),
        ({"key": "rack", "operator": "NotIn", "values": ["1", "2"]}, False),
        ({"key": "row", "operator": "NotIn", "values": ["1"]}, True),
        ({"key": "rack", "operator": "Exists"}, True),
        ({"key": "rack", "operator": "DoesNotExist"}, False),
        ({"key": "rack", "operator": "Gt", "values": ["1"]}, True),
        ({"key": "rack", "operator": "Lt", "values": ["2"]}, False),
        ({"key": "name", "operator": "Gt", "values": ["2"]}, False),
        ({"key": "rack", "operator": "Gt", "values": ["9" * 10_000]}, False),
        ({"key": "rack", "operator": "Like", "values": ["2"]}, False),
    ],
)
def test_a_required_node_affinity(requirement: Object, *, matches: bool) -> None:
    required = {"nodeSelectorTerms": [{}, {"matchExpressions": [requirement]}]}
    spec = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}
    unmet = affinity_of(spec, pod_on(None, "p")).unmet("n", {"rack": "2", "name": "n"})
    assert (unmet is None) == matches
    assert unmet is None or unmet.startswith(f"does not match the required node affinity: {requirement['key']} ")


def test_a_nodes_name_is_a_field_and_a_term_needs_all() -> None:
    term = {
        "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}],
        "matchExpressions": [{"key": "rack", "operator": "Exists"}],
    }
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    affinity = affinity_of({"affinity": {"nodeAffinity": required}, "nodeSelector": {"a": "b"}}, pod_on(None, "p"))
    assert affinity.unmet("n", {"rack": "1", "a": "b"}) is None
    assert affinity.unmet("m", {"rack": "1", "a": "b"}) == (
        "does not match the required node affinity: metadata.name In [n]"
    )
    assert affinity.unmet("n", {"a": "c"}) == "has the label a=c, not a=b"


@pytest.mark.parametrize(
    ("wanted", "fix"),
    [
        ("nvidia.com/GA102_GEFORCE_RTX_309", f"did you mean {RTX_3090} (one has 4, two has 4)?"),
        ("nvidia.com/ga102_geforce_rtx_3090", f"did you mean {RTX_3090} (one has 4, two has 4)?"),
        ("example.org/quantum", f"the nodes offer {RTX_3090} (one has 4, two has 4)"),
        ("devices.gpu-launcher.dev/sev", "gpu-plugin offers it with node_devices: {sev: 110} in its config"),
    ],
)
def test_a_resource_that_nobody_offers_is_said_once_with_what_was_meant(wanted: str, fix: str) -> None:
    nodes = [node_of("one"), node_of("two"), node_of("cp", {RTX_3090: "0"}, taints=[GPU])]
    result = fit(nodes, {wanted: "1", RTX_3090: "0"})
    assert result.answer == (f"no node offers {wanted}", fix)
    assert as_text(result).splitlines()[:4] == [
        "vms/vm fits on none of 3 nodes.",
        f"no node offers {wanted}; {fix}",
        "",
        "cp: has the taint gpu=yes:NoSchedule",
    ]


def test_where_nobody_offers_anything_gpu_plugin_may_not_run() -> None:
    answer = fit([node_of("n", {RTX_3090: "0"})]).answer
    assert answer is not None
    assert answer[1].startswith("no node offers any: see whether gpu-plugin runs, `kubectl get pods -A -l")


def test_nodes_alike_are_told_together_the_nearest_first() -> None:
    far = [node_of(f"cp-{number}", {RTX_3090: "0"}, taints=[GPU]) for number in range(21)]
    result = fit([*far, node_of("near", cordoned=True)])
    assert as_text(result).splitlines() == [
        "vms/vm fits on none of 22 nodes.",
        "no node takes it, and near is the nearest: is cordoned; `kubectl uncordon near`, when its work is done",
        "",
        "near: is cordoned",
        "",
        f"cp-0, cp-1, cp-10 and 18 more: has no {RTX_3090}",
        "  has the taint gpu=yes:NoSchedule",
        "note: no node has a pod here, so all of it counts as free: get nodes,pods -A",
    ]


def test_of_many_nodes_that_differ_the_reasons_are_counted() -> None:
    nodes = [node_of(f"n{number:02}", taints=[{**GPU, "value": str(number)}]) for number in range(30)]
    lines = as_text(fit(nodes)).splitlines()
    assert lines[-5:-1] == [
        "and 20 more kinds of nodes; --json has all",
        "",
        "Of the 30 nodes that it does not fit on:",
        "  30  tainted gpu",
    ]


def test_what_is_not_looked_at_is_noted() -> None:
    spec = {
        "volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "root"}}],
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}},
        "topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}],
    }
    (note,) = fit([node_of("n"), pod_on("n", "a")], spec=spec).notes
    assert note == "not looked at: where its volumes are, podAntiAffinity, topologySpreadConstraints"


def test_for_programs_each_node_has_its_obstacles() -> None:
    document = json.loads(as_json(fit([node_of("n", cordoned=True)])))
    (node,) = document["nodes"]
    fix = "`kubectl uncordon n`, when its work is done"
    assert (document["fits"], node["fits"]) == (False, False)
    assert node["obstacles"] == [{"kind": "cordoned", "subject": "n", "wrong": "is cordoned", "fix": fix}]
    wrong = "no node takes it, and n is the only one: is cordoned"
    assert document["answer"] == {"subject": "vms/vm", "wrong": wrong, "fix": fix}
    first, second, *_ = document["text"].splitlines()
    assert (first, second) == ("vms/vm fits on none of 1 node.", "")


RTX = slices_of(machine("two-rtx-3090"), "rtx")


def by_dra(objects: Sequence[Object], resource: str = RTX_3090) -> Fit:
    pod = asking(pod_on(None, "vm", {"memory": "2Gi"}))
    cluster = cluster_of(objects)
    entries = (Entry(kind=EntryKind.GPU, name="g0", wants=resource),)
    return fit_of("vms/vm", "vms", entries, read_selection({}), (), cluster, pod=pod if cluster.states else None)


def test_a_node_that_fits_by_its_cards_may_have_other_obstacles() -> None:
    busy = pod_on("rtx", "busy", {"memory": "31Gi"})
    result = by_dra([*RTX, node_of("rtx", taints=[GPU]), busy, node_of("cp")])
    assert result.fitting == ()
    assert against(result, "rtx") == [
        "has the taint gpu=yes:NoSchedule",
        "has 1024Mi of 32768Mi memory free and 2048Mi are asked for (ml/busy has 31744Mi)",
    ]
    assert against(result, "cp") == ["no card here could be gpu 'g0'"]
    assert as_text(by_dra([*RTX, node_of("rtx"), busy])).startswith("vms/vm fits on none of 1 node.\n")
    assert as_text(by_dra([*RTX, node_of("rtx")])).startswith("vms/vm fits on 1 of 1 node.\n")


def test_a_slice_of_a_node_that_is_gone() -> None:
    assert against(by_dra([*RTX, node_of("other")]), "rtx") == ["has slices, and there is no such Node"]


@pytest.mark.parametrize("nodes", [(), (node_of("rtx"),)], ids=["slices", "slices and nodes"])
def test_dra_too_says_what_was_meant_and_no_card_is_told_then(nodes: Sequence[Object]) -> None:
    text = as_text(by_dra([*RTX, *nodes], "nvidia.com/GA102_GEFORCE_RTX_309"))
    assert text.splitlines()[:2] == [
        "vms/vm fits on none of 1 node.",
        f"no node offers nvidia.com/GA102_GEFORCE_RTX_309; did you mean {RTX_3090} (rtx has 2)?",
    ]
    assert "another model" not in text


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        ([{"apiVersion": "v1", "kind": "Node"}], "Node: has no metadata.name"),
        ([node_of("n", {"cpu": "many"})], "Node n: capacity: 'many' is not a quantity"),
        ([node_of("n", {"cpu": "-1"})], "Node n: capacity: '-1' is out of range"),
        ([node_of("n", taints=[{"key": "a"}])], "Node n: has a taint without key or effect"),
        ([pod_on("n", "p", spec={"containers": "none"})], "Pod ml/p: containers is no list of objects"),
    ],
)
def test_what_is_no_node_or_pod_is_named(objects: Sequence[Object], said: str) -> None:
    with pytest.raises(UserError) as refused:
        fit(objects)
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"tolerations": [{}] * 1001}, "has 1001 tolerations; expected at most 1000"),
        ({"nodeSelector": {str(number): "" for number in range(1001)}}, "asks 1001 things of its node; expected at"),
    ],
)
def test_a_pod_that_asks_for_too_much_to_judge_is_refused(spec: Object, said: str) -> None:
    with pytest.raises(UserError, match=said):
        fit([node_of("n")], spec=spec)


def test_names_of_any_length_are_compared_quickly() -> None:
    offered = {f"example.com/{'x' * 100_000}{number}": "1" for number in range(50)}
    assert fit([node_of("n", offered)], {f"example.com/{'y' * 100_000}": "1"}).answer is not None


def device_class(name: str, resource: str | None = None, **metadata: str) -> Object:
    """Of our GPUs, and perhaps by a resource's name."""
    spec: Object = {"selectors": [{"cel": {"expression": 'device.driver == "gpu-launcher.dev"'}}]}
    named = {} if resource is None else {"extendedResourceName": resource}
    metadata = {"name": name, **metadata}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": metadata, "spec": {**spec, **named}}


def test_a_node_has_a_resource_by_its_device_plugin_or_else_by_the_class_that_has_its_name() -> None:
    """As the scheduler does (tests/lab/test_device_names.py)."""
    nodes = [node_of("plugin", {RTX_3090: "2"}), node_of("rtx", {RTX_3090: "0"}), node_of("none", {RTX_3090: "0"})]
    result = fit([*nodes, *RTX, device_class("rtx", RTX_3090)], {RTX_3090: "2"})
    assert {node.node: [device.id.name for device in node.devices or ()] for node in result.fitting} == {
        "plugin": [],
        "rtx": ["pci-0000-01-00-0", "pci-0000-e1-00-0"],
    }
    assert against(result, "none") == [f"no card here could be {RTX_3090}"]
    assert result.notes == ("no node has a pod here, so all of it counts as free: get nodes,pods -A",)
    lines = as_text(result).splitlines()
    assert lines[0] == "vms/vm fits on 2 of 3 nodes."
    assert [line.split()[:3] for line in lines[3:6]] == [
        ["plugin", "of", "its"],
        ["rtx", RTX_3090, "0000:01:00.0"],
        [RTX_3090, "0000:e1:00.0", "NVIDIA"],
    ]
    assert against(fit([*nodes, *RTX], {RTX_3090: "2"}), "rtx") == [f"has no {RTX_3090}"]


@pytest.mark.parametrize(
    ("amount", "obstacle"),
    [
        ("3", "3 cards are wanted, and 2 could be had"),
        ("33", f"has no {RTX_3090}"),  # no claim has so many
    ],
)
def test_a_node_by_dra_has_as_many_as_it_has_cards(amount: str, obstacle: str) -> None:
    result = fit([node_of("rtx", {RTX_3090: "0"}), *RTX, device_class("rtx", RTX_3090)], {RTX_3090: amount})
    assert (result.fitting, against(result, "rtx")) == ((), [obstacle])


@pytest.mark.parametrize(
    ("offers", "obstacles"),
    [
        ({RTX_3090: "2"}, [f"has {RTX_3090} by its device plugin, where the scheduler binds no pod with claims"]),
        ({RTX_3090: "0"}, []),
    ],
    ids=["by its plugin", "by DRA"],
)
def test_a_pod_with_claims_gets_no_resource_of_a_device_plugin_that_a_class_serves_too(
    offers: Object, obstacles: list[str]
) -> None:
    """Seen with Kubernetes 1.36.3 and 1.37.2: python -m tests.bench.cluster --scheduler."""
    request = {"name": "card", "exactly": {"deviceClassName": "any"}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "own", "namespace": "vms"},
        "spec": {"devices": {"requests": [request]}},
    }
    classes = [device_class("any"), device_class("rtx", RTX_3090)]
    cluster = cluster_of([node_of("rtx", offers), *RTX, *classes, claim])
    asks = pod_on(None, "vm", {RTX_3090: "1"})
    asks["spec"]["resourceClaims"] = [{"name": "own", "resourceClaimName": "own"}]
    claims = [NamedClaim("own", "ResourceClaim", "own")]
    result = fit_of("vms/vm", "vms", (), read_selection({}), claims, cluster, dra=False, pod=asking(asks))
    assert against(result, "rtx") == obstacles


@pytest.mark.parametrize(
    ("classes", "resource", "of"),
    [
        ([device_class("any")], "deviceclass.resource.kubernetes.io/any", "any"),
        ([device_class("b", RTX_3090), device_class("a", RTX_3090), device_class("c", RTX_3090)], RTX_3090, "a"),
        (
            [
                device_class("a", RTX_3090, creationTimestamp="2026-01-01T00:00:00Z"),
                device_class("b", RTX_3090, creationTimestamp="2026-02-01T00:00:00Z"),
            ],
            RTX_3090,
            "b",
        ),
    ],
    ids=["each has a name", "the first", "the newest"],
)
def test_of_several_classes_with_a_resources_name_the_newest_has_it(
    classes: list[Object], resource: str, of: str
) -> None:
    assert cluster_of(classes).extended[resource] == of
