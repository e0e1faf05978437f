"""The cluster's page: which cards each node has and who has them, by DRA and by device plugins."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lxml import html

from launcher.choosing.cluster import cluster_of
from launcher.choosing.map import map_of
from pci import slices as words
from program.problem import one_line
from tests.clusters import KVM, RTX_3090, Object, claim_of, hgx, machine, node_of, pod_on, slices_of, snapshot_of
from tests.conftest import Command
from tests.pages import assert_closed
from tests.plugin.test_page import HOSTILE

OF_DRA = "NVIDIA GeForce RTX 3090"
TAINT, PREFERRED = ({"key": "t", "effect": effect} for effect in ("NoSchedule", "PreferNoSchedule"))
RTX = slices_of(machine("two-rtx-3090"), "rtx")
FIRST = "pci-0000-01-00-0"
OF_NODE, AWAY = "its node is tainted", "node.kubernetes.io/unreachable"


def shown(*objects: Object) -> Any:
    page = map_of(cluster_of(objects), datetime(2026, 11, 25, 12, 30, tzinfo=UTC))
    assert_closed(page.html, page.policy)
    return html.document_fromstring(page.html)


def cards(page: Any) -> dict[str, list[tuple[str, list[tuple[str, str]]]]]:
    """By node: each heading, and the state and the text of what is below it."""
    return {
        node.findtext("h2"): [
            (group.findtext("h3"), [(each.get("class"), each.text) for each in group.iter("li")])
            for group in node.iter("div")
        ]
        for node in page.iter("section")
    }


def lines(page: Any) -> list[str]:
    return [each.text for each in page.findall("body/p")]


def test_by_dra_each_card_has_its_holder_or_what_keeps_it() -> None:
    page = shown(*RTX, claim_of("c", [("rtx", FIRST)], "desk"))
    taken, free = ("taken", "0000:01:00.0: claim default/c of pod desk"), ("free", "0000:e1:00.0: free")
    assert cards(page) == {"rtx": [(f"{OF_DRA}: 1 free, 1 taken", [taken, free])]}
    assert page.findtext("body/h1") == "1 node, 2 cards: 1 free, 1 taken"
    assert lines(page) == ["As of 2026-11-25 12:30 UTC: this page does not change by itself."]


def test_a_card_that_is_tainted_or_whose_node_is_cordoned_is_not_free() -> None:
    taint = {"key": "example.com/repair", "value": "fan", "effect": "NoSchedule"}
    spec = {"deviceSelector": {"driver": words.DRIVER, "pool": "rtx", "device": FIRST}, "taint": taint}
    rule = {"apiVersion": "resource.k8s.io/v1beta2", "kind": "DeviceTaintRule", "metadata": {"name": "r"}, "spec": spec}
    page = shown(*RTX, rule, node_of("rtx", {RTX_3090: "0"}, cordoned=True), node_of("bare", {RTX_3090: "0"}))
    assert cards(page)["rtx"] == [
        (
            f"{OF_DRA}: 2 unavailable",
            [
                (
                    "unavailable",
                    "0000:01:00.0: its node is cordoned, tainted: example.com/repair=fan by DeviceTaintRule r",
                ),
                ("unavailable", "0000:e1:00.0: its node is cordoned"),
            ],
        )
    ]
    (node,) = page.iter("section")
    assert node.findtext("p") == "16 of 16 cpu free, 32 GiB of 32 GiB memory free, cordoned"
    assert lines(page)[1:] == [
        "Without cards: bare.",
        "Note: no node has a pod here, so all of it counts as free: get nodes,pods -A.",
    ]


def test_a_taint_of_a_card_or_of_its_node_is_no_free_card() -> None:
    """A team's card is for who tolerates its taint; a taint of Kubernetes' own says that the node is broken."""
    spec = {"deviceSelector": {"driver": words.DRIVER, "pool": "rtx", "device": FIRST}, "taint": TAINT}
    rule = {"apiVersion": "resource.k8s.io/v1beta2", "kind": "DeviceTaintRule", "metadata": {"name": "r"}, "spec": spec}
    away = {"key": AWAY, "effect": "NoSchedule"}
    page = shown(
        *RTX,
        rule,
        node_of("team", {RTX_3090: "1"}, taints=[TAINT]),
        node_of("away", {RTX_3090: "2"}, taints=[TAINT, away]),
    )
    assert cards(page) == {
        "away": [(f"{RTX_3090}: 2 unavailable", [("unavailable", f"2: {OF_NODE}: {AWAY}, {OF_NODE}: t")])],
        "rtx": [
            (
                f"{OF_DRA}: 1 free, 1 tainted",
                [("tainted", "0000:01:00.0: tainted: t by DeviceTaintRule r"), ("free", "0000:e1:00.0: free")],
            )
        ],
        "team": [(f"{RTX_3090}: 1 tainted", [("tainted", f"1: {OF_NODE}: t")])],
    }
    assert page.findtext("body/h1") == "3 nodes, 5 cards: 1 free, 2 tainted, 2 unavailable"


def test_sizes_are_as_people_write_them() -> None:
    asked = {"cpu": "1500m", "memory": "1Mi"}
    (node,) = shown(node_of("a", {RTX_3090: "1"}), pod_on("a", "p", asked)).iter("section")
    assert node.findtext("p") == "14.5 of 16 cpu free, 31.9 GiB of 32 GiB memory free"


def test_of_a_device_plugin_it_has_who_asked_for_how_many() -> None:
    """No number becomes as many elements; what any number of pods may share is no card."""
    page = shown(
        node_of("a", {"example.com/fpga": "4000000000"}, capacity={RTX_3090: "5"}, taints=[PREFERRED]),
        node_of("b", cordoned=True),
        pod_on("a", "two", {RTX_3090: "2", KVM: "1"}),
        pod_on("a", "over", {RTX_3090: "1"}, phase="Succeeded"),
        pod_on(None, "late", {RTX_3090: "8"}),
        pod_on(None, "other", {"cpu": "8"}),
    )  # fmt: skip
    assert cards(page) == {
        "a": [
            ("example.com/fpga: 4000000000 free", [("free", "4000000000: free")]),
            (
                f"{RTX_3090}: 2 free, 2 taken, 1 unavailable",
                [("taken", "2: pod ml/two"), ("free", "2: free"), ("unavailable", "1: unhealthy")],
            ),
        ],
        "b": [(f"{RTX_3090}: 4 unavailable", [("unavailable", "4: its node is cordoned")])],
    }
    rows = [[cell.text for cell in row] for row in page.iter("tr")]
    assert rows[1:] == [
        ["example.com/fpga", "4000000000", "0", "0", "0", "1 node"],
        [RTX_3090, "2", "2", "0", "5", "1 node"],
    ]
    assert next(page.iter("section")).findtext("p").endswith("tainted: t:PreferNoSchedule")
    assert lines(page)[1] == "Waiting for a node: ml/late; kubectl gpuvm why says why."
    assert [option.text for option in page.iter("option")] == [
        "all", "example.com/fpga", RTX_3090, "all", "free", "taken", "tainted", "unavailable",
    ]  # fmt: skip


def test_nodes_and_vms_are_counted_as_people_do() -> None:
    numbers = ("2", "10")
    nodes = [node_of(f"gpu-{number}", {RTX_3090: "1"}) for number in reversed(numbers)]
    page = shown(*nodes, *(pod_on(None, f"train-{number}", {RTX_3090: "1"}) for number in reversed(numbers)))
    assert [*cards(page)] == ["gpu-2", "gpu-10"]
    assert lines(page)[1].startswith("Waiting for a node: ml/train-2, ml/train-10;")


def test_a_pool_that_is_being_published_is_said() -> None:
    first, *_ = slices_of(snapshot_of(hgx()), "hgx")
    first = {**first, "spec": {**first["spec"], "pool": {**first["spec"]["pool"], "resourceSliceCount": 9}}}
    (node,) = shown(first).iter("section")
    assert node.findtext("p") == "gpu-launcher.dev is publishing pool hgx: 1 of 9 slices of generation 1 are there"


def test_a_name_stays_a_name() -> None:
    node = node_of(HOSTILE, {f"x/{HOSTILE}": "1"}, taints=[{"key": HOSTILE, "effect": HOSTILE}])
    page = shown(node, pod_on(HOSTILE, HOSTILE, {RTX_3090: "1"}), pod_on(None, HOSTILE, {RTX_3090: "1"}))
    assert page.text_content().count(one_line(HOSTILE)) == 8
    assert not page.xpath("//img")


def test_the_command_prints_the_page_or_what_is_missing(tmp_path: Path, gpu_launcher: Command) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"items": [*RTX, node_of("rtx")]}))
    result = gpu_launcher("map", "--cluster", file)
    assert (result.stderr, result.returncode) == ("", 0)
    assert "<h1>1 node, 6 cards: 6 free</h1>" in result.stdout
    file.write_text("{}")
    result = gpu_launcher("map", "--cluster", file)
    wrong = "neither a Node nor a device of one is among the objects; kubectl get nodes,pods -A -o json"
    assert result.stderr == f"gpu-launcher: --cluster {file}: {wrong}\n"
    assert (result.stdout, result.returncode) == ("", 2)
