from collections.abc import Callable
from pathlib import Path

import pytest

from plugin.cards.config import Config, Groups, Rule
from plugin.cards.holders import Assignment
from plugin.cards.names import PCIIDs
from tests.compose import RTX_3090, card, compose
from tests.conftest import Machine
from tests.snapshots import snapshot_of

RESOURCE = "nvidia.com/GA102_GEFORCE_RTX_3090"
FIRST, SECOND = "0000:01:00.0", "0000:e1:00.0"

Troubles = Callable[..., dict[str, str]]


@pytest.fixture
def in_use(pci_ids: PCIIDs) -> Troubles:
    """What is unhealthy when pods have these devices: (resource, ID) each."""

    def find(sys: Path, *assigned: tuple[str, str], config: Config | None = None) -> dict[str, str]:
        have = [Assignment(f"default/pod-{number}", *use) for number, use in enumerate(assigned)]
        reasons = snapshot_of(sys, pci_ids, config, assignments=frozenset(have)).troubles
        return {device_id: reason.wrong for device_id, reason in reasons.items()}

    return find


@pytest.mark.parametrize("device_id", ["0000:01:00.0", "0000:01:00.1", "11"])
def test_what_another_plugin_gave_out_is_unhealthy_by_address_companion_or_group(
    in_use: Troubles, machine: Machine, device_id: str
) -> None:
    assert in_use(machine("two-rtx-3090"), ("devices.kubevirt.io/gpu", device_id)) == {
        FIRST: "is in use by pod default/pod-0, which has it as devices.kubevirt.io/gpu"
    }


def test_what_the_kubelet_gave_out_as_ours_stays_healthy(in_use: Troubles, machine: Machine) -> None:
    assert in_use(machine("two-rtx-3090"), (RESOURCE, FIRST)) == {}


def test_what_a_pod_has_under_a_name_of_an_earlier_config_is_unhealthy(in_use: Troubles, machine: Machine) -> None:
    config = Config(offer=(Rule(vendor="10de", resource="nvidia.com/pgpu"),))
    assert in_use(machine("two-rtx-3090"), (RESOURCE, FIRST), config=config) == {
        FIRST: f"is in use by pod default/pod-0, which has it as {RESOURCE}"
    }


def test_of_two_pods_the_one_that_the_kubelet_does_not_count_is_named(in_use: Troubles, machine: Machine) -> None:
    (reason,) = in_use(machine("two-rtx-3090"), (RESOURCE, FIRST), ("devices.kubevirt.io/gpu", "11")).values()
    assert "default/pod-1" in reason


def test_ids_that_are_no_device_of_this_node_mean_nothing(in_use: Troubles, machine: Machine) -> None:
    assigned = [("example.com/nic", text) for text in ("0000:99:00.0", "12345", "", "eth0", "kvm-1")]
    assert in_use(machine("two-rtx-3090"), *assigned) == {}


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A machine with two cards in one group."""
    slots = ("0000:01:00", "0000:02:00")
    compose(tmp_path / "sys", [one for slot in slots for one in card(slot, RTX_3090, path="pci0000:00", group=14)])
    return tmp_path / "sys"


ONE_ALONE = Config(offer=(Rule(address="0000:01:00.0", withhold=True),))


@pytest.mark.parametrize("device_id", ["0000:01:00.0", "0000:01:00.1", "0000:02:00.1", "14"])
def test_whoever_has_a_function_of_the_group_has_every_card_in_it(
    in_use: Troubles, shared: Path, device_id: str
) -> None:
    assert set(in_use(shared, ("devices.kubevirt.io/gpu", device_id), config=ONE_ALONE)) == {"0000:02:00.0"}


def test_a_pod_that_has_two_cards_as_one_unit_has_each_of_them_under_a_later_config(
    in_use: Troubles, shared: Path
) -> None:
    together = Config(groups=Groups.TOGETHER)
    assert in_use(shared, (RESOURCE, "0000:01:00.0"), config=together) == {}
    assert in_use(shared, (RESOURCE, "0000:01:00.0"), config=ONE_ALONE) == {
        "0000:02:00.0": f"is in use by pod default/pod-0, which has it as 0000:01:00.0 of {RESOURCE}"
    }
