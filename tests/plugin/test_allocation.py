from collections.abc import Callable
from pathlib import Path

import pytest

from pci.sysfs import read_host
from plugin.allocation import Allocation, allocate
from plugin.config import Config
from plugin.errors import Refusal
from plugin.inventory import take_inventory
from plugin.naming import PCIIDs
from tests.conftest import Machine
from tests.kernel import bind

RTX_3090 = "nvidia.com/GA102_GEFORCE_RTX_3090"


@pytest.fixture
def give(pci_ids: PCIIDs) -> Callable[..., Allocation]:
    def give(sys: Path, resource: str, *device_ids: str) -> Allocation:
        return allocate(take_inventory(read_host(sys), Config(), pci_ids), resource, device_ids)

    return give


Give = Callable[..., Allocation]


def test_one_address_per_card_sorted_and_the_nodes_of_their_groups(give: Give, machine: Machine) -> None:
    assert give(machine("two-rtx-3090"), RTX_3090, "0000:e1:00.0", "0000:01:00.0") == Allocation(
        env={"PCI_RESOURCE_NVIDIA_COM_GA102_GEFORCE_RTX_3090": "0000:01:00.0,0000:e1:00.0"},
        nodes=("/dev/vfio/vfio", "/dev/vfio/11", "/dev/vfio/71"),
    )


@pytest.mark.parametrize(
    ("device_id", "problem"),
    [
        ("0000:ff:00.0", "0000:ff:00.0 is not a device of nvidia.com/GA102_GEFORCE_RTX_3090 on this node"),
        ("0000:01:00.1", "0000:01:00.1 is not a device of"),
        ("71", "'71' is not a PCI address"),
    ],
)
def test_an_unknown_device_is_refused_by_name(give: Give, machine: Machine, device_id: str, problem: str) -> None:
    with pytest.raises(Refusal) as error:
        give(machine("two-rtx-3090"), RTX_3090, "0000:01:00.0", device_id)
    assert problem in str(error.value)


def test_a_device_of_another_resource_is_refused(give: Give, machine: Machine) -> None:
    with pytest.raises(Refusal, match=r"is not a device of nvidia\.com/OTHER"):
        give(machine("two-rtx-3090"), "nvidia.com/OTHER", "0000:01:00.0")


def test_a_card_whose_sibling_was_rebound_meanwhile_is_refused(give: Give, copied_machine: Machine) -> None:
    sys = copied_machine("two-rtx-3090")
    bind(sys, "0000:01:00.1", "snd_hda_intel")
    with pytest.raises(Refusal, match=r"cannot be handed out: it is in group 11, which is not viable: 0000:01:00.1"):
        give(sys, RTX_3090, "0000:01:00.0")
