import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pci.address import PCIAddress
from pci.cards import cards_of
from pci.resource import DeviceKind, NodeDevice
from pci.sysfs.functions import read_host
from pci.vendors import NVIDIA
from plugin.cards.config import Bind, Config, Groups, Rule, Serve
from plugin.cards.inventory import Inventory, take_inventory
from plugin.cards.names import PCIIDs
from program.errors import Refusal
from tests.compose import RTX_2060, Function, card, compose, desktop
from tests.conftest import Machine
from tests.kernel import bind, mediated_device, platform_device, plug, unplug

GPU = PCIAddress.parse("0000:01:00.0")
RTX = "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A"


@pytest.fixture
def take(pci_ids: PCIIDs) -> Callable[..., Inventory]:
    def take(sys: Path, *rules: Rule) -> Inventory:
        return take_inventory(read_host(sys), Config(offer=rules), pci_ids)

    return take


Take = Callable[..., Inventory]


def reason(inventory: Inventory, address: PCIAddress = GPU) -> str | None:
    device = inventory.by_id.get(str(address))
    assert device is not None
    reason = device.withheld or device.unhealthy
    return None if reason is None else str(reason)


def test_a_card_is_one_device_with_all_its_functions(take: Take, machine: Machine) -> None:
    (device,) = take(machine("rtx-2060")).by_resource[RTX]
    assert device.id == str(GPU)
    assert [function.address.function for function in device.functions] == [0, 1, 2, 3]


def test_equal_cards_are_one_resource(take: Take, machine: Machine) -> None:
    offered = take(machine("hgx-a100-8-gpu")).by_resource
    assert {resource: len(devices) for resource, devices in offered.items()} == {"nvidia.com/GA100_A100_SXM4_40GB": 8}


def test_two_device_ids_with_one_name_are_one_resource(take: Take, tmp_path: Path) -> None:
    compose(
        tmp_path / "sys",
        [
            *card("0000:01:00", ["10de:20b1"], path="pci0000:00/0000:00:01.0", group=1),
            *card("0000:02:00", ["10de:20f1"], path="pci0000:00/0000:00:02.0", group=2),
        ],
    )
    (devices,) = take(tmp_path / "sys").by_resource.values()
    assert [str(device.id) for device in devices] == ["0000:01:00.0", "0000:02:00.0"]


def test_a_gpu_whose_audio_function_is_on_snd_hda_intel_is_listed_as_unhealthy(take: Take, machine: Machine) -> None:
    inventory = take(machine("rtx-2060-audio-on-snd-hda-intel"))
    (device,) = inventory.by_resource[RTX]
    assert (device.withheld, str(device.unhealthy)) == (None, reason(inventory))
    assert reason(inventory) == (
        "is in group 1, which is not viable: 0000:01:00.1 (audio) is bound to snd_hda_intel; bind it to vfio-pci"
    )


@pytest.mark.parametrize("name", ["lab-modern", "lab-legacy"])
def test_cards_below_one_switch_without_acs_are_withheld_and_the_others_offered(
    take: Take, machine: Machine, name: str
) -> None:
    inventory = take(machine(name), Rule(device="1234:1111", resource="example.com/card"))
    assert [str(device.id) for device in inventory.by_resource["example.com/card"]] == [
        "0000:01:00.0",
        "0000:41:00.0",
    ]
    for one, other in (("0000:04:00.0", "0000:05:00.0"), ("0000:05:00.0", "0000:04:00.0")):
        assert f"with {other}, " in str(reason(inventory, PCIAddress.parse(one)))


def test_two_gpus_in_one_group_are_not_offered_singly_and_name_each_other(take: Take, machine: Machine) -> None:
    inventory = take(machine("two-gpus-one-group"))
    assert inventory.by_resource == {}
    for one, other in (("0000:01:00.0", "0000:02:00.0"), ("0000:02:00.0", "0000:01:00.0")):
        assert f"shares group 1 with {other}, " in str(reason(inventory, PCIAddress.parse(one)))


def test_without_iommu_no_gpu_is_offered_and_the_reason_says_who_knows_how_to_turn_it_on(
    take: Take, machine: Machine
) -> None:
    inventory = take(machine("rtx-2060-without-iommu"))
    assert inventory.by_resource == {}
    assert "gpu-plugin doctor says what turns it on here" in str(reason(inventory))


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


def test_of_six_cards_the_two_that_are_whole_and_on_vfio_are_offered(take: Take, tmp_path: Path) -> None:
    sys = tmp_path / "sys"
    drivers = ("vfio-pci", "nvgrace_gpu_vfio_pci", "vfio-pci", None, "vfio-pci", "vfio-pci")
    cards = [
        Function(
            address=f"0000:0{number}:00.0",
            id=f"10de:1b8{number - 1}",
            pci_class=0x030200,
            path=f"pci0000:00/0000:00:0{number}.0",
            driver=driver,
            group=None if number == 5 else number,
        )
        for number, driver in enumerate(drivers, start=1)
    ]
    compose(sys, cards)
    for number, lost in ((3, ":1B82"), (6, "PCI_ID=10DE:1B85\n")):  # no device ID; no vendor
        uevent = sys / f"bus/pci/devices/0000:0{number}:00.0/uevent"
        uevent.write_text(uevent.read_text().replace(lost, ""))
    inventory = take(sys)
    assert {resource: [device.id for device in devices] for resource, devices in inventory.by_resource.items()} == {
        "nvidia.com/1b80": ["0000:01:00.0"],
        "nvidia.com/1b81": ["0000:02:00.0"],
    }
    withheld = {device.id: str(device.withheld)[:21] for device in inventory.devices if device.withheld}
    assert withheld == {"0000:04:00.0": "is bound to no driver", "0000:05:00.0": "is in no IOMMU group,"}
    assert [fault.path.partition("/uevent")[0] for fault in read_host(sys).faults] == [
        "bus/pci/devices/0000:03:00.0",
        "bus/pci/devices/0000:06:00.0",
    ]


DSA = Function(
    address="0000:6a:01.0", id="8086:0b25", pci_class=0x088000, path="pci0000:6a", driver="vfio-pci", group=6
)
QAT = replace(DSA, address="0000:6b:00.0", id="8086:4940", pci_class=0x0B4000, group=7)


@pytest.mark.parametrize(
    ("functions", "listed", "withheld"),
    [
        ([], [], None),
        ([DSA], ["0000:6a:01.0"], None),
        ([DSA, QAT], ["0000:6a:01.0"], None),
        ([QAT], [], None),
        ([replace(DSA, driver="idxd")], [], "is bound to idxd; bind the whole card to vfio-pci"),
        ([replace(DSA, driver=None)], [], "is bound to no driver; bind the whole card to vfio-pci"),
        ([replace(DSA, group=None)], [], "is in no IOMMU group: "),
        ([DSA, replace(DSA, address="0000:6f:01.0", group=8)], ["0000:6a:01.0", "0000:6f:01.0"], None),
    ],
)
def test_an_accelerator_that_a_rule_fits_is_offered_or_has_a_reason(
    take: Take, tmp_path: Path, functions: list[Function], listed: list[str], withheld: str | None
) -> None:
    compose(tmp_path / "sys", functions)
    inventory = take(tmp_path / "sys", Rule(device="8086:0b25", resource="intel.com/dsa"))
    assert [device.id for device in inventory.by_resource.get("intel.com/dsa", ())] == listed
    reasons = [device.withheld for device in inventory.devices if device.withheld]
    assert len(reasons) == (withheld is not None)
    assert withheld is None or str(reasons[0]).startswith(withheld)


def test_an_accelerator_that_cannot_be_read_is_a_fault_and_the_other_is_offered(take: Take, tmp_path: Path) -> None:
    sys = tmp_path / "sys"
    compose(sys, [DSA, replace(DSA, address="0000:6f:01.0", group=8)])
    (sys / "bus/pci/devices/0000:6a:01.0/uevent").write_text("")
    inventory = take(sys, Rule(device="8086:0b25", resource="intel.com/dsa"))
    assert [device.id for device in inventory.by_resource["intel.com/dsa"]] == ["0000:6f:01.0"]
    (fault,) = read_host(sys).faults
    assert str(fault).startswith("bus/pci/devices/0000:6a:01.0/uevent: ")


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


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        (
            "intel-ish",
            "is in group 1, which is not viable: INTC1055:00 (not on PCI) is bound to intel-ish; free it of its driver",
        ),
        ("vfio-platform", None),
        (None, None),
    ],
)
def test_what_is_not_on_pci_has_to_leave_the_group_viable_too(
    take: Take, copied_machine: Machine, driver: str | None, expected: str | None
) -> None:
    sys = copied_machine("rtx-2060")
    platform_device(sys, 1, "INTC1055:00", driver)
    assert reason(take(sys)) == expected


def test_a_member_whose_driver_cannot_be_read_leaves_no_group_viable(take: Take, copied_machine: Machine) -> None:
    sys = copied_machine("rtx-2060")
    (sys / "kernel/iommu_groups/1/devices/INTC1055:00/driver").mkdir(parents=True)
    inventory = take(sys)
    assert reason(inventory) == (
        "is in group 1, which is not viable: the driver of INTC1055:00 cannot be read; the kernel's log may say why"
    )
    assert [*map(str, read_host(sys).faults)] == ["kernel/iommu_groups/1/devices/INTC1055:00/driver: expected a link"]


def test_foreign_members_are_all_named_as_the_nodes_own(take: Take, tmp_path: Path) -> None:
    nic = Function(address="0000:02:00.0", id="8086:1533", pci_class=0x020000, path="pci0000:00", driver="igb", group=1)
    gpu = card("0000:01:00", RTX_2060, path="pci0000:00/0000:00:01.0", group=1)
    compose(tmp_path / "sys", desktop((*gpu, nic)))
    assert str(reason(take(tmp_path / "sys"))).endswith(
        "0000:02:00.0 (network) is bound to igb; it is the node's own: put the card into another slot, whose root port "
        "or switch has ACS"
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
    inventory = take(sys, Rule(address=str(address), resource="example.com/vf"))
    assert "is a virtual function of 0000:02:00.0, which is on vfio-pci itself" in str(reason(inventory, address))


def test_a_group_with_a_member_that_cannot_be_read_is_not_viable(take: Take, copied_machine: Machine) -> None:
    sys = copied_machine("rtx-2060")
    (sys / "bus/pci/devices/0000:01:00.1/uevent").write_text("garbage\n")
    inventory = take(sys)
    assert reason(inventory) == (
        "is in group 1, which is not viable: 0000:01:00.1 cannot be read; the kernel's log may say what became of it"
    )
    (fault,) = read_host(sys).faults
    assert str(fault) == (
        "bus/pci/devices/0000:01:00.1/uevent: holds 'garbage'; expected lines with DRIVER, PCI_CLASS, PCI_ID, "
        "PCI_SUBSYS_ID"
    )


def test_any_function_can_be_offered_by_config(take: Take, machine: Machine) -> None:
    sys = machine("two-cards-nested-vfio")
    assert take(sys).by_resource == {}
    by_id = take(sys, Rule(device="1234:1111", resource="example.com/bochs")).by_resource
    assert [str(device.id) for device in by_id["example.com/bochs"]] == ["0000:01:00.0", "0000:41:00.0"]
    by_address = take(sys, Rule(address="0000:41:00.0", resource="example.com/one")).by_resource
    assert [str(device.id) for device in by_address["example.com/one"]] == ["0000:41:00.0"]


def test_a_rule_that_fits_a_companion_offers_the_card(take: Take, machine: Machine) -> None:
    (device,) = take(machine("rtx-2060"), Rule(device="10de:10f9", resource="example.com/a")).by_resource[
        "example.com/a"
    ]
    assert device.id == str(GPU)


def test_the_first_rule_that_fits_names_the_resource(take: Take, machine: Machine) -> None:
    first = Rule(address=str(GPU), resource="example.com/first")
    rules = (first, Rule(device="10de:1f08", resource="example.com/second"))
    assert list(take(machine("rtx-2060"), *rules).by_resource) == ["example.com/first"]


def test_two_rules_with_one_name_are_one_resource(take: Take, machine: Machine) -> None:
    rules = [Rule(address=address, resource="example.com/pool") for address in ("0000:01:00.0", "0000:e1:00.0")]
    listed = take(machine("two-rtx-3090"), *rules).by_resource
    assert [device.id for device in listed["example.com/pool"]] == ["0000:01:00.0", "0000:e1:00.0"]


def test_a_virtual_function_is_a_device_of_its_own(take: Take, copied_machine: Machine) -> None:
    sys = copied_machine("two-cards-nested-vfio")
    bind(sys, "0000:02:00.1", "vfio-pci")
    rule = Rule(address="0000:02:00.1", resource="example.com/vf")
    (device,) = take(sys, rule).by_resource["example.com/vf"]
    assert [str(function.address) for function in device.functions] == ["0000:02:00.1"]


def test_a_bridge_is_never_offered(take: Take, machine: Machine) -> None:
    rule = Rule(address="0000:00:01.0", resource="example.com/bridge")
    inventory = take(machine("rtx-2060"), rule)
    assert "is a PCI bridge" in str(reason(inventory, PCIAddress.parse("0000:00:01.0")))
    assert reason(inventory) is None, "and it takes no offer from the card behind it"


def test_what_a_rule_fits_is_what_a_card_without_a_gpu_is_wanted_for(take: Take, machine: Machine) -> None:
    rule = Rule(device="8086:a348", resource="example.com/audio")
    device = take(machine("rtx-2060"), rule).by_id.get("0000:00:1f.0")
    assert device is not None
    assert (device.lead.pci_id, str(device.withheld)) == (
        "8086:a348",
        "is bound to snd_hda_intel; bind the whole card to vfio-pci",
    )


def test_the_screen_of_a_bmc_is_for_nobody_and_no_rule_is_advised(take: Take, machine: Machine) -> None:
    assert reason(take(machine("hgx-a100-8-gpu")), PCIAddress.parse("0000:e2:00.0")) == (
        "is the screen of the management controller (BMC); leave it to the node"
    )


def test_a_gpu_of_another_vendor_is_listed_with_the_rule_that_would_offer_it(take: Take, tmp_path: Path) -> None:
    mali = Function(address="0000:01:00.0", id="1ed5:0100", pci_class=0x030000, path="pci0000:00", group=1)
    compose(tmp_path / "sys", [mali])
    assert reason(take(tmp_path / "sys"), PCIAddress.parse("0000:01:00.0")) == (
        "has vendor 1ed5, offered only by a config; add a rule with device: '1ed5:0100'"
    )


@pytest.mark.parametrize(("pci_class", "is_listed"), [(0x120000, True), (0x038000, True), (0x040300, False)])
def test_amds_accelerators_count_as_gpus(take: Take, tmp_path: Path, pci_class: int, is_listed: bool) -> None:
    function = Function(address="0000:c1:00.0", id="1002:74a1", pci_class=pci_class, path="pci0000:c0", group=1)
    compose(tmp_path / "sys", [function])
    assert bool(take(tmp_path / "sys").devices) is is_listed


def test_resources_that_share_a_variable_are_refused(take: Take, machine: Machine) -> None:
    rules = (
        Rule(address="0000:01:00.0", resource="a.b/c"),
        Rule(address="0000:41:00.0", resource="a/b.c"),
    )
    with pytest.raises(Refusal, match=r"a\.b/c and a/b\.c: would share the variable PCI_RESOURCE_A_B_C"):
        take(machine("two-cards-nested-vfio"), *rules)


A_B_C = (Rule(address="0000:01:00.0", resource="a/b.c"), Rule(address="0000:e1:00.0", resource="a.b/c"))
OTHER = PCIAddress.parse("0000:e1:00.0")


@pytest.mark.parametrize(("there", "later"), [(GPU, OTHER), (OTHER, GPU)])
def test_a_resource_that_comes_later_and_shares_a_variable_is_withheld_and_the_one_before_stays(
    copied_machine: Machine, pci_ids: PCIIDs, there: PCIAddress, later: PCIAddress
) -> None:
    """Whichever is the first by name: a card that is plugged in must not take another one off the node."""
    sys = copied_machine("two-rtx-3090")
    config = Config(offer=A_B_C)
    for number in (0, 1):
        unplug(sys, f"{str(later)[:-1]}{number}")
    before = take_inventory(read_host(sys), config, pci_ids)
    assert [device.id for devices in before.by_resource.values() for device in devices] == [str(there)]
    for number in (0, 1):
        plug(sys, f"{str(later)[:-1]}{number}")
    for _ in range(2):  # and so it stays
        before = take_inventory(read_host(sys), config, pci_ids, before)
        assert [device.id for devices in before.by_resource.values() for device in devices] == [str(there)]
        old, new = before.by_id[str(there)].resource, before.by_id[str(later)].resource
        assert reason(before, later) == (
            f"cannot be told apart: resources {old} and {new} would share the variable PCI_RESOURCE_A_B_C; "
            "give one of them another name in the config"
        )
    for number in (0, 1):
        unplug(sys, f"{str(there)[:-1]}{number}")
    alone = take_inventory(read_host(sys), config, pci_ids, before)
    assert reason(alone, later) is None, "nobody else has the variable any more"


def test_two_resources_that_come_at_once_and_share_a_variable_are_one_offer(machine: Machine, pci_ids: PCIIDs) -> None:
    nothing = Inventory(())
    found = take_inventory(read_host(machine("two-rtx-3090")), Config(offer=A_B_C), pci_ids, nothing)
    assert list(found.by_resource) == ["a.b/c"]


def test_a_mediated_device_that_is_made_later_and_called_like_a_card_is_withheld(
    copied_machine: Machine, pci_ids: PCIIDs
) -> None:
    sys = copied_machine("rtx-2060")
    config = Config(offer=(Rule(mdev_type="GRID T4-1Q", resource=RTX),))
    before = take_inventory(read_host(sys), config, pci_ids)
    mediated_device(sys, str(GPU), MDEV, "GRID T4-1Q", group=40)
    found = take_inventory(read_host(sys), config, pci_ids, before)
    assert [device.id for device in found.by_resource[RTX]] == [str(GPU)]
    assert "would be both PCI and mediated devices" in str(found.by_id[MDEV].withheld)


def together(sys: Path, pci_ids: PCIIDs, *rules: Rule) -> Inventory:
    return take_inventory(read_host(sys), Config(offer=rules, groups=Groups.TOGETHER), pci_ids)


def test_together_a_group_is_one_unit_named_by_its_first_function(machine: Machine, pci_ids: PCIIDs) -> None:
    rule = Rule(device="1234:1111", resource="example.com/card")
    inventory = together(machine("lab-modern"), pci_ids, rule)
    units = {
        device.id: [str(f.address) for f in device.functions] for device in inventory.by_resource["example.com/card"]
    }
    assert units == {
        "0000:01:00.0": ["0000:01:00.0", "0000:01:00.1"],
        "0000:04:00.0": ["0000:04:00.0", "0000:04:00.1", "0000:05:00.0", "0000:05:00.1"],
        "0000:41:00.0": ["0000:41:00.0", "0000:41:00.1"],
    }
    assert inventory.by_id["0000:04:00.0"].model.startswith("2 x ")
    assert "0000:05:00.0" not in inventory.by_id


def test_together_cards_of_different_resources_are_no_unit(machine: Machine, pci_ids: PCIIDs) -> None:
    inventory = together(machine("two-gpus-one-group"), pci_ids)
    assert inventory.by_resource == {}
    assert str(reason(inventory)).endswith("a rule that gives them one resource makes them one unit")
    pool = together(machine("two-gpus-one-group"), pci_ids, Rule(vendor="10de", resource="nvidia.com/pair"))
    assert [device.id for device in pool.by_resource["nvidia.com/pair"]] == ["0000:01:00.0"]


def test_together_cards_of_different_teams_are_no_unit(machine: Machine, pci_ids: PCIIDs) -> None:
    sys = machine("two-gpus-one-group")
    cards = [str(card[0].address) for card in cards_of(read_host(sys)) if card[0].vendor_id == NVIDIA]

    def offered(*teams: str) -> list[str]:
        rules = [
            Rule(address=address, resource="nvidia.com/pair", team=team)
            for address, team in zip(cards, teams, strict=True)
        ]
        config = Config(offer=tuple(rules), groups=Groups.TOGETHER, serve=Serve.DRA)
        return [f"{device.id} {device.team}" for device in take_inventory(read_host(sys), config, pci_ids).published]

    assert offered("ml", "ml") == [f"{cards[0]} ml"]
    assert offered("ml", "hpc") == []


def test_together_every_card_has_to_be_fit_for_guests(tmp_path: Path, pci_ids: PCIIDs) -> None:
    """A virtual function of a physical one on vfio-pci asks for a token; as one of a unit it does so too."""
    physical = Function(
        address="0000:01:00.0", id="8086:56c0", pci_class=0x038000, path="pci0000:00", driver="vfio-pci", group=1
    )
    compose(tmp_path / "sys", [physical, replace(physical, address="0000:01:01.0", physfn="0000:01:00.0")])
    (unit,) = together(tmp_path / "sys", pci_ids).devices
    assert "is a virtual function of 0000:01:00.0, which is on vfio-pci itself" in str(unit.withheld)


def test_a_card_that_the_config_withholds_leaves_its_group_to_the_other(take: Take, machine: Machine) -> None:
    inventory = take(machine("two-gpus-one-group"), Rule(address="0000:02:00.0", withhold=True))
    assert reason(inventory, PCIAddress.parse("0000:02:00.0")) == "is withheld by the config"
    assert [device.id for device in inventory.by_resource[RTX]] == ["0000:01:00.0"]


def test_a_prefix_keeps_the_name_of_pci_ids(take: Take, machine: Machine) -> None:
    inventory = take(machine("rtx-2060"), Rule(vendor="10de", pci_class="03", prefix="example.com"))
    assert list(inventory.by_resource) == ["example.com/TU106_GEFORCE_RTX_2060_REV__A"]


@pytest.mark.parametrize(
    ("rule", "fits"),
    [
        (Rule(vendor="10DE", resource="a.b/c"), True),
        (Rule(vendor="1002", resource="a.b/c"), False),
        (Rule(subsystem="1462:3756", resource="a.b/c"), True),
        (Rule(pci_class="0300", resource="a.b/c"), True),
        (Rule(pci_class="0302", resource="a.b/c"), False),
        (Rule(driver=("nvidia", "vfio-pci"), resource="a.b/c"), True),
        (Rule(driver="nvidia", resource="a.b/c"), False),
        (Rule(vendor="10de", pci_class="0403", resource="a.b/c"), True),
        # All selectors of a rule are about one function: none is a sound card with the GPU's ID.
        (Rule(device="10de:1f08", pci_class="0403", resource="a.b/c"), False),
    ],
)
def test_a_rule_fits_a_card_by_all_its_selectors_in_one_function(
    take: Take, machine: Machine, rule: Rule, fits: bool
) -> None:
    assert ("a.b/c" in take(machine("rtx-2060"), rule).by_resource) is fits


def test_an_nvswitch_is_no_gpu_and_offered_by_config_alone(take: Take, machine: Machine) -> None:
    address = PCIAddress.parse("0000:c4:00.0")
    assert reason(take(machine("hgx-a100-8-gpu")), address) == (
        "is an NVSwitch, offered only by a config; add a rule with device: '10de:1af1'"
    )
    inventory = take(machine("hgx-a100-8-gpu"), Rule(device="10de:1af1", prefix="nvidia.com"))
    device = inventory.by_id[str(address)]
    assert (device.resource, str(device.withheld)) == (
        "nvidia.com/GA100_A100_NVSWITCH",
        "is bound to nvidia-nvswitch; bind the whole card to vfio-pci",
    )


def l40s(sys: Path, *, vgpu_type: str | None, creatable: str) -> None:
    """A GPU of which NVIDIA's driver for vGPUs (Linux 6.8) made a virtual function."""
    path = "pci0000:40/0000:40:01.0"
    physical = Function(address="0000:41:00.0", id="10de:26b9", pci_class=0x030200, path=path, driver="nvidia", group=5)
    compose(
        sys,
        [
            physical,
            replace(physical, address="0000:41:00.4", group=6, physfn="0000:41:00.0"),
        ],
    )
    nvidia = sys / "bus/pci/devices/0000:41:00.4/nvidia"
    nvidia.mkdir()
    (nvidia / "creatable_vgpu_types").write_text(creatable)
    if vgpu_type is not None:
        (nvidia / "current_vgpu_type").write_text(vgpu_type)


TYPES = "ID    : vGPU Name\n1145  : NVIDIA L40S-1B\n1146  : NVIDIA L40S-2B\n"
VF = PCIAddress.parse("0000:41:00.4")


def test_a_vgpu_is_offered_by_the_name_of_its_profile(take: Take, tmp_path: Path) -> None:
    l40s(tmp_path / "sys", vgpu_type="1145\n", creatable=TYPES)
    inventory = take(tmp_path / "sys")
    assert {resource: [d.id for d in devices] for resource, devices in inventory.by_resource.items()} == {
        "nvidia.com/NVIDIA_L40S-1B": ["0000:41:00.4"]
    }
    (device,) = inventory.by_resource["nvidia.com/NVIDIA_L40S-1B"]
    assert (device.model, device.kind) == ("NVIDIA L40S-1B", DeviceKind.PCI)


@pytest.mark.parametrize("vgpu_type", ["0\n", None])
def test_a_virtual_function_that_is_no_vgpu_is_nvidias(take: Take, tmp_path: Path, vgpu_type: str | None) -> None:
    l40s(tmp_path / "sys", vgpu_type=vgpu_type, creatable=TYPES)
    inventory = take(tmp_path / "sys")
    assert reason(inventory, VF) == "is a virtual function, and no vGPU yet; gpu-plugin vgpus makes one, by the config"
    (card,) = (device for device in inventory.devices if not device.lead.is_virtual)
    assert str(card.withheld).startswith("is in parts: its ")


def test_a_vgpu_whose_type_nothing_names_any_more_asks_for_a_rule(take: Take, tmp_path: Path) -> None:
    l40s(tmp_path / "sys", vgpu_type="1145\n", creatable="ID    : vGPU Name\n")
    assert str(reason(take(tmp_path / "sys"), VF)).endswith("add a rule with vgpu_type: '1145'")
    named = take(tmp_path / "sys", Rule(vgpu_type="1145", resource="nvidia.com/NVIDIA_L40S-1B"))
    assert [device.id for device in named.by_resource["nvidia.com/NVIDIA_L40S-1B"]] == ["0000:41:00.4"]


MDEV = "b0c9d7f4-8d30-4d0f-9d6c-0a4d1c2f9f10"


@pytest.mark.parametrize(
    ("type_name", "directory", "resource"),
    [
        ("GRID T4-1Q", "nvidia-231", "nvidia.com/GRID_T4-1Q"),
        ("GRID P100X-1B", "nvidia-86", "nvidia.com/GRID_P100X-1B"),
        # Intel's types have no name.
        (None, "i915-GVTg_V5_4", "nvidia.com/i915-GVTg_V5_4"),
    ],
)
def test_a_mediated_device_is_offered_by_its_type(
    take: Take, copied_machine: Machine, type_name: str | None, directory: str, resource: str
) -> None:
    sys = copied_machine("rtx-2060")
    mediated_device(sys, str(GPU), MDEV, type_name, directory=directory, group=40)
    (device,) = take(sys).by_resource[resource]
    assert (device.id, device.kind, device.iommu_group, device.lead.address) == (MDEV, DeviceKind.MDEV, 40, GPU)


def test_a_mediated_device_is_on_the_node_of_its_parent(take: Take, copied_machine: Machine) -> None:
    sys = copied_machine("rtx-2060")
    (sys / "bus/pci/devices/0000:01:00.0/numa_node").write_text("2\n")
    mediated_device(sys, str(GPU), MDEV, "GRID T4-1Q", group=40)
    device = take(sys).by_id[MDEV]
    assert (device.lead.address, device.numa_node) == (GPU, 2)


def test_a_mediated_device_without_a_group_is_withheld(take: Take, copied_machine: Machine) -> None:
    sys = copied_machine("rtx-2060")
    mediated_device(sys, str(GPU), MDEV, "GRID T4-1Q", group=None)
    assert str(take(sys).by_id[MDEV].withheld).startswith("is in no IOMMU group")


def test_a_rule_names_mediated_devices_by_type(take: Take, copied_machine: Machine) -> None:
    sys = copied_machine("rtx-2060")
    mediated_device(sys, str(GPU), MDEV, "GRID T4-1Q", group=40)
    assert MDEV in {d.id for d in take(sys, Rule(mdev_type="GRID T4-1Q", resource="a.b/c")).by_resource["a.b/c"]}
    withheld = take(sys, Rule(mdev_type="GRID T4-1Q", vendor="10de", withhold=True)).by_id[MDEV]
    assert str(withheld.withheld) == "is withheld by the config"


def test_one_resource_is_never_both_cards_and_mediated_devices(take: Take, copied_machine: Machine) -> None:
    sys = copied_machine("rtx-2060")
    mediated_device(sys, str(GPU), MDEV, "GRID T4-1Q", group=40)
    with pytest.raises(Refusal, match="would be both PCI and mediated devices"):
        take(sys, Rule(mdev_type="GRID T4-1Q", resource=RTX))


def test_a_card_may_not_be_called_like_a_node_device(machine: Machine, pci_ids: PCIIDs) -> None:
    config = Config(
        offer=(Rule(vendor="10de", resource="devices.gpu-launcher.dev/kvm"),), node_devices={NodeDevice.KVM: 1}
    )
    kvm, problem = (
        NodeDevice.KVM.resource(),
        "is the name of the node's /dev/kvm; give the card another one in the config",
    )
    with pytest.raises(Refusal, match=re.escape(f"{kvm}: {problem}")):
        take_inventory(read_host(machine("rtx-2060")), config, pci_ids)
    nothing = Inventory(())
    later = take_inventory(read_host(machine("rtx-2060")), config, pci_ids, nothing)
    assert (later.by_resource, reason(later)) == ({}, f"cannot be told apart: {kvm} {problem}")


def test_a_rule_says_how_its_cards_are_served_and_the_config_how_the_others_are(
    machine: Machine, pci_ids: PCIIDs
) -> None:
    rule = Rule(address="0000:01:00.0", resource="example.com/mine", serve=Serve.DEVICE_PLUGIN)
    config = Config(offer=(rule,), serve=Serve.DRA)
    inventory = take_inventory(read_host(machine("two-rtx-3090")), config, pci_ids)
    assert {resource: [device.id for device in its] for resource, its in inventory.by_resource.items()} == {
        "example.com/mine": ["0000:01:00.0"]
    }
    assert [device.id for device in inventory.published] == ["0000:e1:00.0"]


def test_one_resource_that_would_be_served_in_both_ways_is_refused(machine: Machine, pci_ids: PCIIDs) -> None:
    rule = Rule(address="0000:01:00.0", prefix="nvidia.com", serve=Serve.DRA)
    with pytest.raises(Refusal) as refused:
        take_inventory(read_host(machine("two-rtx-3090")), Config(offer=(rule,)), pci_ids)
    assert str(refused.value) == (
        "0000:e1:00.0 of nvidia.com/GA102_GEFORCE_RTX_3090: would be served by device-plugin, and other cards of that "
        "resource by dra; say one `serve` for the whole resource, or give the cards two resources"
    )


def test_a_card_that_comes_later_and_would_be_served_otherwise_is_withheld(
    machine: Machine, copied_machine: Machine, pci_ids: PCIIDs
) -> None:
    sys = copied_machine("two-rtx-3090")
    config = Config(offer=(Rule(address="0000:e1:00.0", prefix="nvidia.com", serve=Serve.DRA),))
    for function in ("0000:e1:00.0", "0000:e1:00.1"):
        unplug(sys, function)
    before = take_inventory(read_host(sys), config, pci_ids)
    assert [device.id for device in before.offered] == ["0000:01:00.0"]
    after = take_inventory(read_host(machine("two-rtx-3090")), config, pci_ids, before)
    assert [device.id for device in after.offered] == ["0000:01:00.0"]
    assert "would be served by dra" in str(after.by_id["0000:e1:00.0"].withheld)


# Bound when claimed.


def to_bind(sys: Path, pci_ids: PCIIDs, *rules: Rule, **words: Any) -> dict[str, int]:
    """How many functions would be bound, by the ID of what is published for that."""
    config = Config(offer=rules, serve=Serve.DRA, bind=Bind.WHEN_CLAIMED, **words)
    inventory = take_inventory(read_host(sys), config, pci_ids)
    assert not inventory.by_resource
    assert not any(
        device.withheld or device.unhealthy for device in inventory.devices if device.id in inventory.to_bind
    )
    return {device_id: len(functions) for device_id, functions in inventory.to_bind.items()}


def test_a_card_on_its_hosts_driver_or_on_none_is_published_to_be_bound(
    copied_machine: Machine, pci_ids: PCIIDs
) -> None:
    sys = copied_machine("two-rtx-3090")
    assert to_bind(sys, pci_ids) == {}
    bind(sys, "0000:01:00.0", "nouveau")
    bind(sys, "0000:e1:00.0", None)
    assert to_bind(sys, pci_ids) == {"0000:01:00.0": 2, "0000:e1:00.0": 2}
    # For DRA alone, and where the config says so.
    plugin = Rule(address="0000:01:00.0", resource="a.b/mine", serve=Serve.DEVICE_PLUGIN)
    config = Config(offer=(plugin,), serve=Serve.DRA, bind=Bind.WHEN_CLAIMED)
    inventory = take_inventory(read_host(sys), config, pci_ids)
    assert reason(inventory) == "is bound to nouveau; bind the whole card to vfio-pci"
    assert [device.id for device in inventory.published] == ["0000:e1:00.0"]
    assert take_inventory(read_host(sys), Config(serve=Serve.DRA), pci_ids).published == ()


def test_the_processors_own_gpu_is_published_for_who_asks_for_it_alone(
    copied_machine: Machine, pci_ids: PCIIDs
) -> None:
    sys = copied_machine("rtx-2060")
    for function in range(4):
        bind(sys, f"0000:01:00.{function}", None)
    assert to_bind(sys, pci_ids) == {"0000:01:00.0": 4}
    assert to_bind(sys, pci_ids, Rule(address="0000:00:02.0", resource="a.b/igpu")).keys() == {
        "0000:00:02.0",
        "0000:01:00.0",
    }


def test_what_its_driver_gives_out_in_parts_stays_with_it(tmp_path: Path, pci_ids: PCIIDs) -> None:
    physical = Function(
        address="0000:01:00.0", id="10de:2235", pci_class=0x030200, path="pci0000:00", driver="nvidia", group=1
    )
    virtual = replace(physical, address="0000:01:00.4", physfn="0000:01:00.0", group=2)
    parent = replace(physical, address="0000:02:00.0", group=3)
    compose(tmp_path / "sys", [physical, virtual, parent])
    mediated_device(tmp_path / "sys", "0000:02:00.0", str(UUID(int=1)), "GRID T4-1Q", group=4)
    assert to_bind(tmp_path / "sys", pci_ids) == {}


def test_without_an_iommu_nothing_is_to_be_bound(copied_machine: Machine, pci_ids: PCIIDs) -> None:
    sys = copied_machine("rtx-2060-without-iommu")
    assert to_bind(sys, pci_ids) == {}


def test_cards_of_one_group_are_bound_together(copied_machine: Machine, pci_ids: PCIIDs) -> None:
    sys = copied_machine("two-gpus-one-group")
    for address in read_host(sys).functions:
        if str(address).startswith(("0000:01", "0000:02")):
            bind(sys, str(address), None)
    assert to_bind(sys, pci_ids) == {}
    both = Rule(vendor="10de", pci_class="03", resource="a.b/both")
    assert to_bind(sys, pci_ids, both, groups=Groups.TOGETHER) == {"0000:01:00.0": 6}
