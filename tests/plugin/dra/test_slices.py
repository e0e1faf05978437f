"""A node's devices as the scheduler is told of them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pci import slices as words
from pci.slices import fitted, value_of
from plugin.cards.config import Config, Rule, Serve
from plugin.cards.names import PCIIDs
from plugin.cards.nodes import read_nodes
from plugin.dra.slices import OwningNode, attributes, capacity, slices
from plugin.fabric.board import _MOST_PLACES
from tests.compose import RTX_3090, card, compose
from tests.conftest import Machine
from tests.kernel import bind, make_nodes, mediated_device
from tests.snapshots import snapshot_of

NODE = OwningNode("node-1", "0b6f3c3e-0000-4000-8000-000000000001")
Published = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def published(pci_ids: PCIIDs, tmp_path: Path) -> Published:
    """The slices of a machine, with the nodes in /dev that it ought to have."""

    def publish(sys: Path, config: Config | None = None, node: OwningNode = NODE) -> list[dict[str, Any]]:
        dev = tmp_path / "dev"
        if not dev.exists():
            make_nodes(sys, dev)
        config = config or Config(serve=Serve.DRA)
        return slices(snapshot_of(sys, pci_ids, config, nodes=read_nodes(dev)), node)

    return publish


def devices(slices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [device for each in slices for device in each["spec"]["devices"]]


def values(device: dict[str, Any]) -> dict[str, Any]:
    return {name: value_of(value) for name, value in device["attributes"].items()}


def test_one_card_is_one_device_with_what_is_known_of_it(published: Published, machine: Machine) -> None:
    first, second = devices(published(machine("two-rtx-3090")))
    assert first["name"] == "pci-0000-01-00-0"
    assert second["name"] == "pci-0000-e1-00-0"
    assert first["capacity"] == {"memory": {"value": "24Gi"}}
    assert values(first) == {
        "type": "card",
        "vendor": "10de",
        "device": "10de:2204",
        "subsystem": values(first)["subsystem"],
        "model": "GA102 [GeForce RTX 3090]",
        "productName": "NVIDIA GeForce RTX 3090",
        "resource": "nvidia.com/GA102_GEFORCE_RTX_3090",
        "functions": 2,
        "nvmlName": "NVIDIA GeForce RTX 3090",
        "driver": "vfio-pci",
        "iommuGroup": 11,
        "uuid": values(first)["uuid"],
        "resource.kubernetes.io/pciBusID": "0000:01:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:00",
        "resource.kubernetes.io/numaNode": 0,
    }
    assert "taints" not in first


def test_a_device_never_has_more_attributes_than_the_api_takes(pci_ids: PCIIDs, machine: Machine) -> None:
    """32, ResourceSliceMaxAttributesAndCapacitiesPerDevice; the board's places are as many as it ever tells."""
    places: dict[str, int | str] = {f"place{number}": number for number in range(2 + _MOST_PLACES)}
    inventory = snapshot_of(machine("hgx-a100-8-gpu"), pci_ids).inventory
    # Attributes and capacity together.
    assert max(len(attributes(device, "node", places)) + len(capacity(device)) for device in inventory.devices) <= 32


def test_what_is_unknown_is_absent(published: Published, machine: Machine) -> None:
    (device,) = devices(published(machine("rtx-2060")))
    assert words.NUMA_NODE not in device["attributes"]
    assert words.SWITCH not in device["attributes"]


def test_cards_behind_one_switch_say_so(published: Published, machine: Machine) -> None:
    its = [values(device) for device in devices(published(machine("hgx-a100-8-gpu")))]
    switches = [each[words.SWITCH] for each in its]
    assert len(its) == 8
    assert len(set(switches)) < 8
    assert all(re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", switch) for switch in switches)


def test_the_uuid_is_of_the_place_and_the_model(published: Published, machine: Machine) -> None:
    sys = machine("two-rtx-3090")
    uuids = [values(device)["uuid"] for device in devices(published(sys))]
    assert uuids == [values(device)["uuid"] for device in devices(published(sys))]
    elsewhere = [values(device)["uuid"] for device in devices(published(sys, node=OwningNode("node-2", "x")))]
    assert len({*uuids, *elsewhere}) == 4


def test_a_mediated_device_is_known_by_its_own_uuid(
    published: Published, copied_machine: Machine, tmp_path: Path
) -> None:
    sys = copied_machine("rtx-2060")
    uuid = "8b6f3c3e-1111-4222-8333-000000000001"
    mediated_device(sys, "0000:01:00.0", uuid, "GRID T4-1Q", group=90)
    its = next(device for device in devices(published(sys)) if device["name"].startswith("mdev-"))
    assert its["name"] == f"mdev-{uuid}"
    assert {"type": "mdev", "uuid": uuid, "mdevUUID": uuid, "parent": "0000:01:00.0"}.items() <= values(its).items()
    assert words.PCI_BUS_ID not in its["attributes"]


def test_what_cannot_be_handed_out_stays_with_a_taint_that_says_why(
    published: Published, copied_machine: Machine
) -> None:
    sys = copied_machine("two-rtx-3090")
    healthy = published(sys)
    bind(sys, "0000:01:00.1", "snd_hda_intel")
    first, second = devices(published(sys))
    assert first["taints"] == [
        {
            "key": "gpu-launcher.dev/unhealthy",
            "value": "is-in-group-11-which-is-not-viable-0000-01-00.1-audio-is-bound",
            "effect": "NoSchedule",
        }
    ]
    assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", first["taints"][0]["value"])
    assert "taints" not in second
    bind(sys, "0000:01:00.1", "vfio-pci")
    assert published(sys) == healthy


def test_a_teams_card_has_the_teams_taint_beside_that_of_an_unhealthy_one(
    published: Published, copied_machine: Machine
) -> None:
    sys = copied_machine("two-rtx-3090")
    rule = Rule(address="0000:01:00.0", prefix="nvidia.com", team="ml")
    config = Config(serve=Serve.DRA, offer=(rule,))
    first, second = devices(published(sys, config))
    team = {"key": "gpu-launcher.dev/team", "value": "ml", "effect": "NoSchedule"}
    assert first["taints"] == [team]
    assert values(first)["resource"] == values(second)["resource"]
    assert "taints" not in second
    bind(sys, "0000:01:00.1", "snd_hda_intel")
    first, _ = devices(published(sys, config))
    assert [taint["key"] for taint in first["taints"]] == ["gpu-launcher.dev/unhealthy", "gpu-launcher.dev/team"]


def test_what_the_config_withholds_is_not_published(published: Published, machine: Machine) -> None:
    config = Config(serve=Serve.DRA, offer=(Rule(address="0000:01:00.0", withhold=True),))
    assert [device["name"] for device in devices(published(machine("two-rtx-3090"), config))] == ["pci-0000-e1-00-0"]


def test_a_node_without_devices_has_an_empty_slice_and_not_none(published: Published, machine: Machine) -> None:
    (only,) = published(machine("two-rtx-3090"), Config(serve=Serve.DRA, offer=(Rule(vendor="10de", withhold=True),)))
    assert only["spec"]["devices"] == []
    assert only["spec"]["pool"] == {"name": "node-1", "generation": 1, "resourceSliceCount": 1}


def test_a_slice_goes_with_its_node(published: Published, machine: Machine) -> None:
    (only,) = published(machine("two-rtx-3090"))
    assert only["metadata"] == {
        "name": "node-1-gpu-launcher.dev-0",
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": NODE.uid, "controller": True}
        ],
    }


def test_more_devices_than_a_slice_takes_are_several_slices_of_one_pool(published: Published, tmp_path: Path) -> None:
    sys = tmp_path / "sys"
    cards = [
        function
        for number in range(70)
        for function in card(f"0000:{number + 1:02x}:00", RTX_3090, path="pci0000:00", group=number + 1)
    ]
    compose(sys, cards)
    parts = published(sys)
    assert [len(part["spec"]["devices"]) for part in parts] == [64, 6]
    assert {part["spec"]["pool"]["resourceSliceCount"] for part in parts} == {2}
    names = [device["name"] for device in devices(parts)]
    assert names == sorted(names)


def test_a_text_that_is_too_long_for_an_attribute_is_cut_and_stays_distinct() -> None:
    name = "nvidia.com/" + "A" * 63
    cut = fitted(name)
    assert len(cut.encode()) == 64
    assert cut != fitted(name[:-1] + "B")
    assert fitted("x" * 64) == "x" * 64
    assert len(fitted("ü" * 40).encode()) <= 64
