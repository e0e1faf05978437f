from pathlib import Path

import pytest

from pci.sysfs import read_host
from plugin.config import Config, Rule
from plugin.holders import Holder, Use, holders
from plugin.inventory import Inventory, take_inventory
from plugin.naming import PCIIDs
from plugin.snapshot import Snapshot
from tests.compose import RTX_2060, Function, card, compose, desktop
from tests.conftest import Machine

OURS = "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A"
GPU = "0000:01:00.0"


@pytest.fixture
def inventory(machine: Machine, pci_ids: PCIIDs) -> Inventory:
    return take_inventory(read_host(machine("rtx-2060")), Config(), pci_ids)


@pytest.mark.parametrize(
    ("resource", "device_id"),
    [
        ("nvidia.com/TU106_GEFORCE_RTX_2060_REV__A_OLD", GPU),
        ("nvidia.com/TU106_HIGH_DEFINITION_AUDIO_CONTROLLER", "0000:01:00.1"),  # NVIDIA's plugin: a companion
        ("devices.kubevirt.io/rtx", "1"),  # KubeVirt's own: the number of the group
    ],
)
def test_what_another_plugin_gave_out_is_unhealthy_and_names_the_pod(
    inventory: Inventory, resource: str, device_id: str
) -> None:
    snapshot = Snapshot(inventory, None, holders(inventory, [Use("vms/virt-launcher-a", resource, device_id)]))
    assert snapshot.troubles == {GPU: f"is in use by pod vms/virt-launcher-a, which has it as {resource}"}


def test_what_we_gave_out_ourselves_stays_healthy_since_the_kubelet_counts_it(inventory: Inventory) -> None:
    snapshot = Snapshot(inventory, None, holders(inventory, [Use("vms/a", OURS, GPU)]))
    assert (snapshot.troubles, snapshot.holders) == ({}, {GPU: Holder("vms/a", OURS)})


def test_of_two_holders_the_foreign_one_is_the_news(inventory: Inventory) -> None:
    uses = [Use("vms/a", OURS, GPU), Use("vms/b", "example.com/other", "0000:01:00.2")]
    assert holders(inventory, uses) == {GPU: Holder("vms/b", "example.com/other")}


@pytest.mark.parametrize("device_id", ["0000:ff:00.0", "999", "GPU-fef8089b", "kvm17", ""])
def test_devices_that_are_none_of_ours_are_of_no_concern(inventory: Inventory, device_id: str) -> None:
    assert holders(inventory, [Use("default/a", "example.com/x", device_id)]) == {}


def test_after_a_rename_the_pod_that_has_it_by_the_old_name_is_seen(machine: Machine, pci_ids: PCIIDs) -> None:
    config = Config(offer=(Rule(vendor="10de", resource="nvidia.com/pgpu"),))
    renamed = take_inventory(read_host(machine("rtx-2060")), config, pci_ids)
    snapshot = Snapshot(renamed, None, holders(renamed, [Use("vms/a", OURS, GPU)]))
    assert "which has it as nvidia.com/TU106" in snapshot.troubles[GPU]


def test_a_pod_with_another_member_of_the_group_has_the_group(tmp_path: Path, pci_ids: PCIIDs) -> None:
    nic = Function(
        address="0000:02:00.0", id="8086:1533", pci_class=0x020000, path="pci0000:00", driver="vfio-pci", group=1
    )
    compose(tmp_path / "sys", desktop((*card("0000:01:00", RTX_2060, path="pci0000:00/0000:00:01.0", group=1), nic)))
    found = take_inventory(read_host(tmp_path / "sys"), Config(), pci_ids)
    assert list(holders(found, [Use("net/a", "intel.com/nic", "0000:02:00.0")])) == [GPU]
