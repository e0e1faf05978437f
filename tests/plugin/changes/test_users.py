import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from pci.address import PCIAddress
from pci.sysfs.functions import read_host
from plugin.cards.config import Config, Groups, Rule
from plugin.cards.names import PCIIDs
from plugin.changes.users import Assignment, KubeletList, users
from tests.compose import RTX_3090, card, compose
from tests.conftest import Command, Machine
from tests.kubelet import Kubelet
from tests.processes import FIXTURES
from tests.snapshots import snapshot_of

RESOURCE = "nvidia.com/GA102_GEFORCE_RTX_3090"
FIRST, SECOND = "0000:01:00.0", "0000:e1:00.0"

Troubles = Callable[..., dict[str, str]]


@pytest.fixture
def in_use(pci_ids: PCIIDs) -> Troubles:
    """What is unhealthy when pods have these devices: (resource, ID) each. The kubelet tells all IDs of a resource, if
    no others are `known`: those that pods have."""

    def find(
        sys: Path,
        *assigned: tuple[str, str],
        config: Config | None = None,
        known: Mapping[str, Iterable[str]] | None = None,
    ) -> dict[str, str]:
        have = [Assignment(f"default/pod-{number}", *use) for number, use in enumerate(assigned)]
        ids: dict[str, set[str]] = {}
        for one in have:
            ids.setdefault(one.resource, set()).add(one.device_id)
        every = {resource: frozenset(each) for resource, each in (ids if known is None else known).items()}
        reasons = snapshot_of(sys, pci_ids, config, assignments=frozenset(have), resource_ids=every).troubles
        return {device_id: reason.wrong for device_id, reason in reasons.items()}

    return find


@pytest.mark.parametrize("device_id", ["0000:01:00.0", "0000:01:00.1", "11"])
def test_what_another_plugin_gave_out_is_unhealthy_by_address_companion_or_group(
    in_use: Troubles, machine: Machine, device_id: str
) -> None:
    assert in_use(machine("two-rtx-3090"), ("devices.kubevirt.io/gpu", device_id)) == {
        FIRST: "is in use by pod default/pod-0, which has it as devices.kubevirt.io/gpu"
    }


def test_a_group_beside_an_address_of_the_same_resource_is_found(in_use: Troubles, machine: Machine) -> None:
    """As after a change of plugin: pods of the older one have groups, those of the newer one addresses."""
    assigned = [("devices.kubevirt.io/gpu", device_id) for device_id in ("11", SECOND)]
    assert in_use(machine("two-rtx-3090"), *assigned).keys() == {FIRST, SECOND}


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


RDMA = "rdma/hca_shared_devices_a"


@pytest.mark.parametrize("devices", [3, 8, 512])
def test_a_neighbour_that_numbers_its_devices_makes_no_gpu_unhealthy(
    in_use: Troubles, machine: Machine, devices: int
) -> None:
    """NVIDIA's k8s-rdma-shared-dev-plugin beside eight GPUs, one of which is in group 6."""
    every = list(map(str, range(devices)))
    given = every if devices < 512 else ["6", "20", "34"]
    found = in_use(machine("hgx-a100-8-gpu"), *((RDMA, number) for number in given), known={RDMA: every})
    assert found == {}


GPUS = ("6", "20", "34")


def test_a_neighbour_whose_ids_are_groups_on_vfio_is_found(in_use: Troubles, machine: Machine) -> None:
    kubevirt = "devices.kubevirt.io/a100"
    found = in_use(machine("hgx-a100-8-gpu"), (kubevirt, "6"), (kubevirt, "34"), known={kubevirt: GPUS})
    assert set(found.values()) == {
        f"is in use by pod default/pod-{number}, which has it as {kubevirt}" for number in (0, 1)
    }


@pytest.mark.parametrize(
    ("known", "why"),
    [
        ({}, "a kubelet before 1.28 tells no IDs"),
        ({RDMA: (*GPUS, "1")}, "one of the groups may have been taken from vfio"),
    ],
)
def test_of_a_number_that_may_be_anything_nobody_is_told_to_delete_a_pod(
    in_use: Troubles, machine: Machine, pci_ids: PCIIDs, known: Mapping[str, Iterable[str]], why: str
) -> None:
    sys = machine("hgx-a100-8-gpu")
    (wrong,) = in_use(sys, (RDMA, "6"), known=known).values()
    words = f"may be in use by pod default/pod-0, which has 6 of {RDMA}: that may be the number of its IOMMU group, or"
    assert wrong == f"{words} of another kind of device", why
    seen = snapshot_of(sys, pci_ids, assignments=frozenset({Assignment("default/a", RDMA, "6")}), sees_pods=True)
    (holder,) = seen.holders.values()
    assert str(holder) == "pod default/a, perhaps"
    (trouble,) = seen.troubles.values()
    assert trouble.fix == "it is handed out again when the pod has ended"
    assert [device.id for device in seen.inventory.offered if seen.user(device)] == []
    assert PCIAddress.parse(next(iter(seen.holders))) not in seen.idle


def test_ids_without_a_gap_that_are_all_on_vfio_may_be_groups(in_use: Troubles, tmp_path: Path) -> None:
    functions = [
        one for number in (0, 1) for one in card(f"0000:0{number + 1}:00", RTX_3090, path="pci0000:00", group=number)
    ]
    compose(tmp_path / "sys", functions)
    (why,) = in_use(tmp_path / "sys", (RDMA, "0"), known={RDMA: ("0", "1")}).values()
    assert why.startswith("may be in use by pod default/pod-0")


def test_a_claim_for_a_function_of_the_group_has_every_card_in_it(shared: Path, pci_ids: PCIIDs) -> None:
    snapshot = snapshot_of(shared, pci_ids, ONE_ALONE, claimed={"0000:01:00.0": "vms/gpu"})
    assert {device.id: snapshot.claim(device) for device in snapshot.inventory.devices} == {
        "0000:01:00.0": "vms/gpu",
        "0000:02:00.0": "vms/gpu",
    }


def test_users_are_named_once_pods_before_claims_and_the_certain_first(machine: Machine) -> None:
    lines = {Assignment("ml/b", RDMA, "11"), Assignment("vms/a", RESOURCE, FIRST)}
    of = users(read_host(machine("two-rtx-3090")), KubeletList(assignments=frozenset(lines)), {FIRST: "vms/gpu"}).of
    companion = PCIAddress.parse("0000:01:00.1")
    assert of([companion, PCIAddress.parse(FIRST)]) == {
        "pod vms/a": True,
        "pod ml/b, perhaps": False,
        "ResourceClaim vms/gpu": True,
    }
    assert of([PCIAddress.parse(SECOND)]) == {}


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


@pytest.mark.parametrize("tells_ids", [True, False])
def test_the_kubelet_is_asked_for_all_ids_of_a_resource_that_numbers_its_devices(
    gpu_plugin: Command, machine: Machine, kubelet: Kubelet, tells_ids: bool
) -> None:
    kubelet.tells_ids = tells_ids
    kubelet.neighbours = {RDMA: ["0", "6", "x"]}
    kubelet.give("ml/training-0", RDMA, ["6"])
    flags = ("--sysfs", machine("hgx-a100-8-gpu"), "--pod-resources", kubelet.pod_resources)
    result = gpu_plugin("inventory", "--json", *flags, "--pci-ids", FIXTURES / "pci.ids")
    reasons = [each["reason"] for each in json.loads(result.stdout)["devices"] if each["resource"] and each["reason"]]
    wrong = "may be in use by pod ml/training-0"
    assert sum(reason["wrong"].startswith(wrong) for reason in reasons) == (not tells_ids)
