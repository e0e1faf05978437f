from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
import yaml

from pci.address import PCIAddress
from pci.host import Host, MediatedDevice
from pci.sysfs.functions import read_host
from plugin.cards.config import Config, Rule, Serve
from plugin.cards.inventory import Inventory, take_inventory
from plugin.cards.names import PCIIDs
from plugin.permitted_host_devices import permitted_host_devices, permitted_yaml
from tests.compose import RTX_2060, RTX_3090, card, compose, desktop
from tests.conftest import Command, Machine
from tests.kernel import bind
from tests.processes import FIXTURES

PCI_IDS = ("--pci-ids", FIXTURES / "pci.ids")
A100 = {
    "pciVendorSelector": "10DE:20B0",
    "resourceName": "nvidia.com/GA100_A100_SXM4_40GB",
    "externalResourceProvider": True,
}

Take = Callable[..., Inventory]


@pytest.fixture
def take(pci_ids: PCIIDs) -> Take:
    def take(sys: Path, *rules: Rule) -> Inventory:
        return take_inventory(read_host(sys), Config(offer=rules), pci_ids)

    return take


def test_eight_equal_gpus_are_one_entry_as_kubevirt_spells_it(take: Take, machine: Machine) -> None:
    assert permitted_host_devices(take(machine("hgx-a100-8-gpu"))) == {
        "permittedHostDevices": {"pciHostDevices": [A100]}
    }


def test_what_dra_serves_is_permitted_too(machine: Machine, pci_ids: PCIIDs) -> None:
    """KubeVirt admits a deviceName by this list alone, whoever serves it."""
    inventory = take_inventory(read_host(machine("hgx-a100-8-gpu")), Config(serve=Serve.DRA), pci_ids)
    assert permitted_host_devices(inventory) == {"permittedHostDevices": {"pciHostDevices": [A100]}}


def test_the_gpu_selects_its_card_whatever_its_companions_are(take: Take, machine: Machine) -> None:
    (entry,) = permitted_host_devices(take(machine("rtx-2060")))["permittedHostDevices"]["pciHostDevices"]
    assert entry["pciVendorSelector"] == "10DE:1F08"


def test_there_is_an_entry_for_each_selector_and_resource_in_order(take: Take, tmp_path: Path) -> None:
    compose(
        tmp_path / "sys",
        [
            *card("0000:01:00", RTX_3090, path="pci0000:00/0000:00:01.0", group=1),
            *card("0000:02:00", RTX_2060, path="pci0000:00/0000:00:02.0", group=2),
            *card("0000:03:00", RTX_3090, path="pci0000:00/0000:00:03.0", group=3),
        ],
    )
    pool = Rule(address=("0000:02:00.0", "0000:03:00.0"), resource="example.com/pool")
    entries = permitted_host_devices(take(tmp_path / "sys", pool))["permittedHostDevices"]["pciHostDevices"]
    assert [(entry["pciVendorSelector"], entry["resourceName"]) for entry in entries] == [
        ("10DE:1F08", "example.com/pool"),
        ("10DE:2204", "example.com/pool"),
        ("10DE:2204", "nvidia.com/GA102_GEFORCE_RTX_3090"),
    ]


def test_what_is_withheld_is_not_permitted_and_what_is_unhealthy_is(take: Take, copied_machine: Machine) -> None:
    sys = copied_machine("rtx-2060-audio-on-snd-hda-intel")
    inventory = take(sys)
    assert {device.withheld is None for device in inventory.devices} == {True, False}
    assert len(permitted_host_devices(inventory)["permittedHostDevices"]["pciHostDevices"]) == 1
    bind(sys, "0000:01:00.0", "nouveau")
    assert permitted_host_devices(take(sys)) == {"permittedHostDevices": {}}


def test_mediated_devices_are_selected_by_the_name_of_their_type(machine: Machine, pci_ids: PCIIDs) -> None:
    seen = read_host(machine("rtx-2060"))
    parent = PCIAddress.parse("0000:01:00.0")
    mdevs = tuple(
        MediatedDevice(UUID(int=number), "GRID T4-1Q", parent, iommu_group=20 + number, vfio_device=None)
        for number in range(2)
    )
    host = Host(functions=seen.functions, groups=seen.groups, noiommu=seen.noiommu, faults=(), mdevs=mdevs)
    inventory = take_inventory(host, Config(), pci_ids)
    assert permitted_yaml(inventory, ()).startswith(
        "# KubeVirt's virt-handler removes each mediated device of the node"
    )
    stanza = permitted_host_devices(inventory)["permittedHostDevices"]
    assert list(stanza) == ["pciHostDevices", "mediatedDevices"]
    assert stanza["mediatedDevices"] == [
        {
            "mdevNameSelector": "GRID T4-1Q",
            "resourceName": "nvidia.com/GRID_T4-1Q",
            "externalResourceProvider": True,
        }
    ]


def test_a_node_that_offers_nothing_says_so_in_a_comment(take: Take, machine: Machine) -> None:
    text = permitted_yaml(take(machine("virtual-machine-without-iommu")), ())
    assert text == "# This node offers no device; gpu-plugin inventory says why.\npermittedHostDevices: {}\n"


def test_what_could_not_be_read_may_be_missing_and_is_named_in_a_comment(take: Take, tmp_path: Path) -> None:
    gpu = card("0000:01:00", RTX_2060[:1], path="pci0000:00/0000:00:01.0", group=1)
    compose(tmp_path / "sys", desktop(gpu))
    (tmp_path / "sys/bus/pci/devices/0000:00:14.0/uevent").write_text("?\n")
    text = permitted_yaml(take(tmp_path / "sys"), read_host(tmp_path / "sys").faults)
    assert text.startswith("# not read: bus/pci/devices/0000:00:14.0/uevent: holds '?'; expected")
    assert "10DE:1F08" in str(yaml.safe_load(text))


def test_the_command_prints_what_is_pasted_below_spec_configuration(gpu_plugin: Command, machine: Machine) -> None:
    result = gpu_plugin("inventory", "--permitted", "--sysfs", machine("hgx-a100-8-gpu"), *PCI_IDS)
    assert result.stdout == (
        "permittedHostDevices:\n"
        "  pciHostDevices:\n"
        "  - pciVendorSelector: 10DE:20B0\n"
        "    resourceName: nvidia.com/GA100_A100_SXM4_40GB\n"
        "    externalResourceProvider: true\n"
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_the_command_prints_one_thing(gpu_plugin: Command, machine: Machine) -> None:
    result = gpu_plugin("inventory", "--permitted", "--json", "--sysfs", machine("rtx-2060"), *PCI_IDS)
    assert result.stderr == "gpu-plugin: --json and --permitted: both say what to print; give one of them\n"
    assert (result.returncode, result.stdout) == (2, "")
