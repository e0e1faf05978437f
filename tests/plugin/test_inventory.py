from collections.abc import Callable
from pathlib import Path

import pytest

from pci.address import PCIAddress
from pci.sysfs import read_host
from plugin.config import Config, Rule
from plugin.errors import Refusal
from plugin.inventory import Inventory, take_inventory
from plugin.naming import PCIIDs
from tests.compose import RTX_2060, Function, card, compose, desktop
from tests.conftest import Machine
from tests.kernel import bind

GPU = PCIAddress.parse("0000:01:00.0")
RTX = "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A"


@pytest.fixture
def take(pci_ids: PCIIDs) -> Callable[..., Inventory]:
    def take(sys: Path, *rules: Rule) -> Inventory:
        return take_inventory(read_host(sys), Config(offer=rules), pci_ids)

    return take


Take = Callable[..., Inventory]


def reason(inventory: Inventory, address: PCIAddress = GPU) -> str | None:
    device = inventory.device(address)
    assert device is not None
    return device.reason


def test_a_card_is_one_device_with_all_its_functions(take: Take, machine: Machine) -> None:
    (device,) = take(machine("rtx-2060")).on_offer[RTX]
    assert device.address == GPU
    assert [function.address.function for function in device.functions] == [0, 1, 2, 3]


def test_equal_cards_are_one_resource(take: Take, machine: Machine) -> None:
    offered = take(machine("hgx-a100-8-gpu")).on_offer
    assert {resource: len(devices) for resource, devices in offered.items()} == {"nvidia.com/GA100_A100_SXM4_40GB": 8}


def test_two_device_ids_with_one_name_are_one_resource(take: Take, tmp_path: Path) -> None:
    compose(
        tmp_path / "sys",
        [
            *card("0000:01:00", ["10de:20b1"], path="pci0000:00/0000:00:01.0", group=1),
            *card("0000:02:00", ["10de:20f1"], path="pci0000:00/0000:00:02.0", group=2),
        ],
    )
    (devices,) = take(tmp_path / "sys").on_offer.values()
    assert [str(device.address) for device in devices] == ["0000:01:00.0", "0000:02:00.0"]


def test_a_gpu_whose_audio_function_is_on_snd_hda_intel_is_not_offered(take: Take, machine: Machine) -> None:
    inventory = take(machine("rtx-2060-audio-on-snd-hda-intel"))
    assert inventory.on_offer == {}
    assert reason(inventory) == (
        "is in group 1, which is not viable: 0000:01:00.1 (audio) is bound to snd_hda_intel; bind it to vfio-pci"
    )


@pytest.mark.parametrize("name", ["lab-modern", "lab-legacy"])
def test_cards_below_one_switch_without_acs_are_withheld_and_the_others_offered(
    take: Take, machine: Machine, name: str
) -> None:
    inventory = take(machine(name), Rule(device="1234:1111", resource="example.com/card"))
    assert [str(device.address) for device in inventory.on_offer["example.com/card"]] == [
        "0000:01:00.0",
        "0000:41:00.0",
    ]
    for one, other in (("0000:04:00.0", "0000:05:00.0"), ("0000:05:00.0", "0000:04:00.0")):
        assert f"with {other}, " in str(reason(inventory, PCIAddress.parse(one)))


def test_two_gpus_in_one_group_are_not_offered_singly_and_name_each_other(take: Take, machine: Machine) -> None:
    inventory = take(machine("two-gpus-one-group"))
    assert inventory.on_offer == {}
    for one, other in (("0000:01:00.0", "0000:02:00.0"), ("0000:02:00.0", "0000:01:00.0")):
        assert f"shares group 1 with {other}, " in str(reason(inventory, PCIAddress.parse(one)))


def test_without_iommu_no_gpu_is_offered_and_the_reason_says_how_to_turn_it_on(take: Take, machine: Machine) -> None:
    inventory = take(machine("rtx-2060-without-iommu"))
    assert inventory.on_offer == {}
    assert "intel_iommu=on" in str(reason(inventory))


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        ("vfio-pci", None),
        ("nvgrace_gpu_vfio_pci", None),
        ("mlx5_vfio_pci", None),
        ("hisi-acc-vfio-pci", None),
        ("nouveau", "is bound to nouveau; bind the whole card to vfio-pci"),
        (None, "is bound to no driver; bind the whole card to vfio-pci"),
    ],
)
def test_a_gpu_is_offered_on_vfio_pci_and_its_variants_only(
    take: Take, tmp_path: Path, driver: str | None, expected: str | None
) -> None:
    gpu = card("0000:01:00", RTX_2060[:1], path="pci0000:00/0000:00:01.0", group=1, drivers=[driver])
    compose(tmp_path / "sys", desktop(gpu))
    assert reason(take(tmp_path / "sys")) == expected


@pytest.mark.parametrize("driver", [None, "pci-stub"])
def test_a_card_with_a_function_that_vfio_does_not_have_is_not_offered(
    take: Take, tmp_path: Path, driver: str | None
) -> None:
    """Its group could be opened, but the guest gets the card whole."""
    drivers = ["vfio-pci", "vfio-pci", driver, "vfio-pci"]
    compose(
        tmp_path / "sys",
        desktop(card("0000:01:00", RTX_2060, path="pci0000:00/0000:00:01.0", group=1, drivers=drivers)),
    )
    assert reason(take(tmp_path / "sys")) == (
        f"is not whole: 0000:01:00.2 (USB) is bound to {driver or 'no driver'}; bind it to vfio-pci"
    )


@pytest.mark.parametrize("driver", [None, "pci-stub", "vfio-pci"])
def test_others_of_the_group_leave_it_viable_without_a_driver_of_their_own(
    take: Take, tmp_path: Path, driver: str | None
) -> None:
    nic = Function(
        address="0000:02:00.0", id="8086:1533", pci_class=0x020000, path="pci0000:00", driver=driver, group=1
    )
    gpu = card("0000:01:00", RTX_2060, path="pci0000:00/0000:00:01.0", group=1)
    compose(tmp_path / "sys", desktop((*gpu, nic)))
    assert reason(take(tmp_path / "sys")) is None


def test_a_foreign_member_may_lose_its_driver_instead(take: Take, tmp_path: Path) -> None:
    nic = Function(address="0000:02:00.0", id="8086:1533", pci_class=0x020000, path="pci0000:00", driver="igb", group=1)
    gpu = card("0000:01:00", RTX_2060, path="pci0000:00/0000:00:01.0", group=1)
    compose(tmp_path / "sys", desktop((*gpu, nic)))
    assert str(reason(take(tmp_path / "sys"))).endswith(
        "0000:02:00.0 (network) is bound to igb; bind it to vfio-pci or to no driver"
    )


def test_a_group_without_an_iommu_is_not_offered(take: Take, copied_machine: Machine) -> None:
    sys = copied_machine("rtx-2060")
    (sys / "kernel/iommu_groups/1/name").write_text("vfio-noiommu\n")
    assert "no-IOMMU mode" in str(reason(take(sys)))


def test_a_virtual_function_of_a_physical_one_on_vfio_is_not_offered(take: Take, copied_machine: Machine) -> None:
    sys = copied_machine("two-cards-nested-vfio")
    for number in (0, 1):
        bind(sys, f"0000:02:00.{number}", "vfio-pci")
    address = PCIAddress.parse("0000:02:00.1")
    inventory = take(sys, Rule(address=address, resource="example.com/vf"))
    assert "is a virtual function of 0000:02:00.0, which is on vfio-pci itself" in str(reason(inventory, address))


def test_a_group_with_a_member_that_cannot_be_read_is_not_viable(take: Take, copied_machine: Machine) -> None:
    sys = copied_machine("rtx-2060")
    (sys / "bus/pci/devices/0000:01:00.1/uevent").write_text("garbage\n")
    inventory = take(sys)
    assert reason(inventory) == "is in group 1, which is not viable: 0000:01:00.1 cannot be read"
    assert inventory.faults == (
        (
            "bus/pci/devices/0000:01:00.1/uevent: holds 'garbage'; expected lines with DRIVER, PCI_CLASS, PCI_ID, "
            "PCI_SUBSYS_ID"
        ),
    )


def test_any_function_can_be_offered_by_config(take: Take, machine: Machine) -> None:
    sys = machine("two-cards-nested-vfio")
    assert take(sys).on_offer == {}
    by_id = take(sys, Rule(device="1234:1111", resource="example.com/bochs")).on_offer
    assert [str(device.address) for device in by_id["example.com/bochs"]] == ["0000:01:00.0", "0000:41:00.0"]
    by_address = take(sys, Rule(address=PCIAddress.parse("0000:41:00.0"), resource="example.com/one")).on_offer
    assert [str(device.address) for device in by_address["example.com/one"]] == ["0000:41:00.0"]


def test_a_rule_that_fits_a_companion_offers_the_card(take: Take, machine: Machine) -> None:
    (device,) = take(machine("rtx-2060"), Rule(device="10de:10f9", resource="example.com/a")).on_offer["example.com/a"]
    assert device.address == GPU


def test_the_first_rule_that_fits_names_the_resource(take: Take, machine: Machine) -> None:
    rules = (Rule(address=GPU, resource="example.com/first"), Rule(device="10de:1f08", resource="example.com/second"))
    assert list(take(machine("rtx-2060"), *rules).on_offer) == ["example.com/first"]


def test_a_virtual_function_is_a_device_of_its_own(take: Take, copied_machine: Machine) -> None:
    sys = copied_machine("two-cards-nested-vfio")
    bind(sys, "0000:02:00.1", "vfio-pci")
    rule = Rule(address=PCIAddress.parse("0000:02:00.1"), resource="example.com/vf")
    (device,) = take(sys, rule).on_offer["example.com/vf"]
    assert [str(function.address) for function in device.functions] == ["0000:02:00.1"]


def test_a_bridge_is_never_offered(take: Take, machine: Machine) -> None:
    rule = Rule(address=PCIAddress.parse("0000:00:01.0"), resource="example.com/bridge")
    inventory = take(machine("rtx-2060"), rule)
    assert "is a PCI bridge" in str(reason(inventory, PCIAddress.parse("0000:00:01.0")))
    assert reason(inventory) is None, "and it takes no offer from the card behind it"


def test_what_a_rule_fits_is_what_a_card_without_a_gpu_is_wanted_for(take: Take, machine: Machine) -> None:
    rule = Rule(device="8086:a348", resource="example.com/audio")
    device = take(machine("rtx-2060"), rule).device(PCIAddress.parse("0000:00:1f.0"))
    assert device is not None
    assert (device.lead.pci_id, device.reason) == (
        "8086:a348",
        "is bound to snd_hda_intel; bind the whole card to vfio-pci",
    )


def test_a_gpu_of_another_vendor_is_listed_with_the_rule_that_would_offer_it(take: Take, machine: Machine) -> None:
    assert reason(take(machine("hgx-a100-8-gpu")), PCIAddress.parse("0000:e2:00.0")) == (
        "has vendor 1a03, offered only by a config: add a rule with device: '1a03:2000'"
    )


@pytest.mark.parametrize(("pci_class", "is_listed"), [(0x120000, True), (0x038000, True), (0x040300, False)])
def test_amds_accelerators_count_as_gpus(take: Take, tmp_path: Path, pci_class: int, is_listed: bool) -> None:
    function = Function(address="0000:c1:00.0", id="1002:74a1", pci_class=pci_class, path="pci0000:c0", group=1)
    compose(tmp_path / "sys", [function])
    assert bool(take(tmp_path / "sys").devices) is is_listed


def test_resources_that_share_a_variable_are_refused(take: Take, machine: Machine) -> None:
    rules = (
        Rule(address=PCIAddress.parse("0000:01:00.0"), resource="a.b/c"),
        Rule(address=PCIAddress.parse("0000:41:00.0"), resource="a/b.c"),
    )
    with pytest.raises(Refusal, match=r"a\.b/c and a/b\.c would share the variable PCI_RESOURCE_A_B_C"):
        take(machine("two-cards-nested-vfio"), *rules)
