from pathlib import Path

import pytest

from launcher.vm.cards.claims import Entry
from launcher.vm.cards.guest import GuestCard, not_passed_on, whole_cards
from pci.host import Host
from pci.sysfs.functions import read_host
from tests.conftest import Machine
from tests.kernel import bind, make_nodes
from tests.launcher.vms import RTX_2060, RTX_2060_VARIABLE, RTX_3090, RTX_3090_VARIABLE, claim, entries
from tests.listings import MACHINES, compose_listing


def cards_of(wanted: tuple[Entry, ...], environ: dict[str, str], host: Host | None) -> tuple[GuestCard, ...]:
    return whole_cards(*claim(wanted, environ, host), host)


def functions(card: GuestCard) -> list[str]:
    return list(map(str, card.functions))


def test_a_claimed_gpu_brings_its_audio_usb_and_ucsi(machine: Machine) -> None:
    host = read_host(machine("rtx-2060"))
    (card,) = cards_of(entries(gpus=[("g", RTX_2060)]), {RTX_2060_VARIABLE: "0000:01:00.0"}, host)
    assert functions(card) == ["0000:01:00.0", "0000:01:00.1", "0000:01:00.2", "0000:01:00.3"]


def test_two_cards_each_bring_their_own(machine: Machine) -> None:
    host = read_host(machine("two-rtx-3090"))
    wanted = entries(gpus=[("a", RTX_3090), ("b", RTX_3090)])
    first, second = cards_of(wanted, {RTX_3090_VARIABLE: "0000:e1:00.0,0000:01:00.0"}, host)
    assert functions(first) == ["0000:e1:00.0", "0000:e1:00.1"]
    assert functions(second) == ["0000:01:00.0", "0000:01:00.1"]


def test_a_companion_that_another_entry_claims_stays_with_that_entry(machine: Machine) -> None:
    host = read_host(machine("rtx-2060"))
    wanted = entries(gpus=[("g", RTX_2060)], host_devices=[("audio", "example.com/audio")])
    environ = {RTX_2060_VARIABLE: "0000:01:00.0", "PCI_RESOURCE_EXAMPLE_COM_AUDIO": "0000:01:00.1"}
    gpu, audio = cards_of(wanted, environ, host)
    assert functions(gpu) == ["0000:01:00.0", "0000:01:00.2", "0000:01:00.3"]
    assert functions(audio) == ["0000:01:00.1"]


def test_functions_of_one_card_join_the_first_entry_that_has_one_and_virtual_functions_none(machine: Machine) -> None:
    host = read_host(machine("rtx-2060"))
    wanted = entries(gpus=[("g", RTX_2060)], host_devices=[("audio", "example.com/audio"), ("usb", "example.com/usb")])
    environ = {
        RTX_2060_VARIABLE: "0000:01:00.0",
        "PCI_RESOURCE_EXAMPLE_COM_AUDIO": "0000:01:00.1",
        "PCI_RESOURCE_EXAMPLE_COM_USB": "0000:01:00.2",
    }
    gpu, audio, usb = cards_of(wanted, environ, host)
    assert (gpu.joins, audio.joins, usb.joins) == (None, gpu.claim, gpu.claim)
    assert [card.joins for card in cards_of(wanted, environ, None)] == [None, None, None]


def test_the_rest_of_a_unit_comes_once_where_two_entries_have_its_first_card(machine: Machine) -> None:
    host = read_host(machine("two-gpus-one-group"))
    wanted = entries(gpus=[("pair", RTX_2060)], host_devices=[("audio", "example.com/audio")])
    cards = cards_of(wanted, {**UNITS_VALUE, "PCI_RESOURCE_EXAMPLE_COM_AUDIO": "0000:01:00.1"}, host)
    assert [functions(card) for card in cards] == [
        ["0000:01:00.0", "0000:01:00.2", "0000:01:00.3"],
        ["0000:01:00.1"],
        ["0000:02:00.0", "0000:02:00.1"],
    ]


UNIT = entries(gpus=[("pair", RTX_2060)])
UNITS_VALUE = {RTX_2060_VARIABLE: "0000:01:00.0"}
FIRST_OF_UNIT = ["0000:01:00.0", "0000:01:00.1", "0000:01:00.2", "0000:01:00.3"]


def test_the_other_card_of_a_unit_comes_along_and_the_root_ports_of_its_group_do_not(machine: Machine) -> None:
    host = read_host(machine("two-gpus-one-group"))
    first, second = cards_of(UNIT, UNITS_VALUE, host)
    assert (functions(first), functions(second)) == (FIRST_OF_UNIT, ["0000:02:00.0", "0000:02:00.1"])
    assert (first.claim, second.missing) == (second.claim, None)


def test_what_comes_along_is_behind_the_cards_of_all_entries(machine: Machine) -> None:
    host = read_host(machine("two-gpus-one-group"))
    wanted = entries(gpus=[("pair", RTX_2060)], host_devices=[("vf", "example.com/vf")])
    cards = cards_of(wanted, {**UNITS_VALUE, "PCI_RESOURCE_EXAMPLE_COM_VF": "0000:00:14.0"}, host)
    assert [functions(card)[0] for card in cards] == ["0000:01:00.0", "0000:00:14.0", "0000:02:00.0"]


def test_a_card_behind_another_of_its_kind_in_its_group_is_no_unit(machine: Machine) -> None:
    # The config withholds the first card: a unit's value would have that one's address.
    host = read_host(machine("two-gpus-one-group"))
    (card,) = cards_of(entries(gpus=[("g", RTX_3090)]), {RTX_3090_VARIABLE: "0000:02:00.0"}, host)
    assert functions(card) == ["0000:02:00.0", "0000:02:00.1"]


def test_a_card_that_another_entry_or_a_variable_names_comes_along_with_nobody(machine: Machine) -> None:
    host = read_host(machine("two-gpus-one-group"))
    environ = {**UNITS_VALUE, RTX_3090_VARIABLE: "0000:02:00.0"}
    (unasked,) = cards_of(UNIT, environ, host)
    both = cards_of(entries(gpus=[("a", RTX_2060), ("b", RTX_3090)]), environ, host)
    assert functions(unasked) == FIRST_OF_UNIT
    assert [functions(card)[0] for card in both] == ["0000:01:00.0", "0000:02:00.0"]


def test_in_the_older_dialect_the_other_card_of_the_group_is_left_over(machine: Machine) -> None:
    host = read_host(machine("two-gpus-one-group"))
    environ = {RTX_2060_VARIABLE: ",".join([*FIRST_OF_UNIT, "0000:02:00.0", "0000:02:00.1"])}
    claims, left_over = claim(UNIT, environ, host)
    cards = whole_cards(claims, left_over, host)
    assert [functions(card) for card in cards] == [FIRST_OF_UNIT]
    assert [list(map(str, left.devices)) for left in not_passed_on(left_over, cards)] == [["0000:02:00.0"]]


@pytest.mark.parametrize("address", ["0000:01:00.2", "0000:02:00.1"])
def test_a_group_with_an_endpoint_on_another_driver_is_no_unit(copied_machine: Machine, address: str) -> None:
    sys = copied_machine("two-gpus-one-group")
    uevent = sys / f"bus/pci/devices/{address}/uevent"
    uevent.write_text(uevent.read_text().replace("DRIVER=vfio-pci", "DRIVER=xhci_hcd"))
    assert len(cards_of(UNIT, UNITS_VALUE, read_host(sys))) == 1


def test_a_card_of_the_group_that_cannot_be_read_is_missed_by_name(copied_machine: Machine) -> None:
    sys = copied_machine("two-gpus-one-group")
    (sys / "bus/pci/devices/0000:02:00.0/uevent").unlink()
    (card,) = cards_of(UNIT, UNITS_VALUE, read_host(sys))
    assert str(card.missing) == "0000:02:00.0, in its group, cannot be read in sysfs"


def test_without_companions_a_claim_is_its_function_alone_and_nothing_is_missed(machine: Machine) -> None:
    host = read_host(machine("two-gpus-one-group"))
    for known in (host, None):
        (card,) = whole_cards(*claim(UNIT, UNITS_VALUE, known), known, companions="none")
        assert (functions(card), card.missing) == (["0000:01:00.0"], None)


SEVERAL = "cards-of-several-groups"
RADEON, ARC = "amd.com/radeon", "intel.com/arc"
BOTH = entries(gpus=[("arc", ARC), ("radeon", RADEON)])
BOTH_VALUES = {"PCI_RESOURCE_INTEL_COM_ARC": "0000:43:00.0", "PCI_RESOURCE_AMD_COM_RADEON": "0000:03:00.0"}


def test_functions_in_groups_of_their_own_come_on_the_slot_and_those_of_another_slot_behind_all_entries(
    machine: Machine,
) -> None:
    cards = cards_of(BOTH, BOTH_VALUES, read_host(machine(SEVERAL)))
    assert [(card.claim.entry.name, functions(card)) for card in cards] == [
        ("arc", ["0000:43:00.0"]),
        ("radeon", ["0000:03:00.0", "0000:03:00.1"]),
        ("arc", ["0000:44:00.0"]),
    ]
    assert {(card.missing, card.left_behind, card.joins) for card in cards} == {(None, (), None)}


@pytest.mark.parametrize("address", ["0000:03:00.1", "0000:44:00.0"])
def test_a_function_in_a_group_of_its_own_that_vfio_does_not_have_is_left_behind(
    copied_machine: Machine, address: str
) -> None:
    sys = copied_machine(SEVERAL)
    bind(sys, address, "snd_hda_intel")
    cards = cards_of(BOTH, BOTH_VALUES, read_host(sys))
    assert address not in [one for card in cards for one in functions(card)]
    ((left,),) = (card.left_behind for card in cards if card.left_behind)
    assert left.wrong == f"leaves {address} (audio) behind: that is bound to snd_hda_intel"


def test_what_the_container_has_no_node_for_is_left_behind_as_under_another_plugin(machine: Machine) -> None:
    host = read_host(machine(SEVERAL))
    claims, left_over = claim(BOTH, BOTH_VALUES, host)
    nodes = {"vfio", "13", "24"}
    arc, radeon = whole_cards(claims, left_over, host, nodes=nodes)
    assert (functions(arc), functions(radeon)) == (["0000:43:00.0"], ["0000:03:00.0"])
    (left,) = radeon.left_behind
    assert left.wrong == (
        "leaves 0000:03:00.1 (audio) behind: the container does not have /dev/vfio/14, the node of its IOMMU group"
    )
    assert len(whole_cards(claims, left_over, host, nodes={*nodes, "14", "25"})) == 3
    # Without even the GPU's node, that is what is wrong.
    assert len(whole_cards(claims, left_over, host, nodes={"vfio"})) == 3


def test_nodes_by_function_bring_a_function_too(copied_machine: Machine, tmp_path: Path) -> None:
    sys = copied_machine(SEVERAL)
    make_nodes(sys, tmp_path / "dev", cdevs=True)
    host = read_host(sys)
    claims, left_over = claim(BOTH, BOTH_VALUES, host)
    by_function = {f"devices/{one.vfio_device}" for one in host.functions.values() if one.vfio_device}
    assert len(whole_cards(claims, left_over, host, nodes=by_function)) == 3
    assert [card.left_behind for card in whole_cards(claims, left_over, host, nodes=by_function)] == [(), (), ()]


def test_audio_that_is_claimed_by_itself_keeps_its_seat_and_brings_no_gpu(machine: Machine) -> None:
    """Another guest may have that."""
    host = read_host(machine(SEVERAL))
    audio = {"PCI_RESOURCE_EXAMPLE_COM_AUDIO": "0000:03:00.1"}
    wanted = entries(host_devices=[("audio", "example.com/audio")])
    (alone,) = cards_of(wanted, audio, host)
    assert functions(alone) == ["0000:03:00.1"]
    beside = cards_of((*BOTH[1:], *wanted), {**BOTH_VALUES, **audio}, host)
    assert [(functions(card), card.joins) for card in beside] == [(["0000:03:00.0"], None), (["0000:03:00.1"], None)]


def test_arcs_audio_in_the_gpus_group_has_the_seat_that_it_had(tmp_path: Path) -> None:
    """Before it was of the card, it came along with its group."""
    listing = (MACHINES / "arc-all-in-one-group.lst").read_text()
    host = read_host(compose_listing(tmp_path, listing).sys)
    wanted = entries(gpus=[("arc", ARC), ("other", RTX_2060)])
    values = {"PCI_RESOURCE_INTEL_COM_ARC": "0000:03:00.0", RTX_2060_VARIABLE: "0000:06:00.0"}
    cards = cards_of(wanted, values, host)
    assert [functions(card) for card in cards] == [["0000:03:00.0"], ["0000:06:00.0"], ["0000:04:00.0"]]


def test_two_entries_of_one_part_say_what_is_left_behind_once(copied_machine: Machine) -> None:
    sys = copied_machine(SEVERAL)
    bind(sys, "0000:03:00.1", None)
    wanted = entries(gpus=[("a", RADEON)], host_devices=[("b", "example.com/b")])
    values = {**BOTH_VALUES, "PCI_RESOURCE_EXAMPLE_COM_B": "0000:43:00.0"}
    cards = cards_of(wanted, values, read_host(sys))
    assert [len(card.left_behind) for card in cards] == [1, 0, 0]


def test_without_companions_a_gpu_comes_alone_and_leaves_nothing_to_say(machine: Machine) -> None:
    host = read_host(machine(SEVERAL))
    cards = whole_cards(*claim(BOTH, BOTH_VALUES, host), host, companions="none")
    assert [(functions(card), card.left_behind) for card in cards] == [(["0000:43:00.0"], ()), (["0000:03:00.0"], ())]


def test_a_virtual_function_brings_nobody(machine: Machine) -> None:
    host = read_host(machine("two-cards-nested-vfio"))
    wanted = entries(host_devices=[("vf", "example.com/vf")])
    (card,) = cards_of(wanted, {"PCI_RESOURCE_EXAMPLE_COM_VF": "0000:02:00.1"}, host)
    assert functions(card) == ["0000:02:00.1"]


def test_without_sysfs_a_claim_is_its_function_alone(machine: Machine) -> None:
    for host, missing in (
        (None, "0000:86:00.0 was not looked up: there is no --sysfs"),
        (read_host(machine("two-rtx-3090")), "0000:86:00.0 is not in sysfs"),
    ):
        (card,) = cards_of(entries(gpus=[("g", RTX_2060)]), {RTX_2060_VARIABLE: "0000:86:00.0"}, host)
        assert (functions(card), str(card.missing)) == (["0000:86:00.0"], missing)


def test_a_companion_that_cannot_be_read_is_missed_by_name(copied_machine: Machine) -> None:
    sys = copied_machine("rtx-2060")
    (sys / "bus/pci/devices/0000:01:00.1/uevent").unlink()
    (card,) = cards_of(entries(gpus=[("g", RTX_2060)]), {RTX_2060_VARIABLE: "0000:01:00.0"}, read_host(sys))
    assert str(card.missing) == "0000:01:00.1, on its slot and in its group, cannot be read in sysfs"
