"""Which functions are one card, on recorded machines."""

from pci.address import PCIAddress
from pci.cards import card_of, cards_of
from pci.sysfs.functions import read_host
from tests.conftest import Machine

GPU = PCIAddress.parse("0000:01:00.0")


def test_an_address_that_is_not_there_is_no_card(machine: Machine) -> None:
    assert card_of(read_host(machine("rtx-2060")), PCIAddress.parse("0000:09:00.0")) == ()


def test_a_virtual_function_knows_its_physical_one_and_is_a_device_of_its_own(machine: Machine) -> None:
    host = read_host(machine("two-cards-nested-vfio"))
    physical, virtual = (PCIAddress.parse(f"0000:02:00.{number}") for number in (0, 1))
    assert host.functions[virtual].physical_function == physical
    assert [function.address for function in card_of(host, virtual)] == [virtual]
    assert [function.address for function in card_of(host, physical)] == [physical]


def test_the_recorded_machine_has_two_cards_one_of_them_on_node_1(machine: Machine) -> None:
    host = read_host(machine("two-cards-nested-vfio"))
    assert host.faults == ()
    first, second = card_of(host, GPU), card_of(host, PCIAddress.parse("0000:41:00.0"))
    assert [str(function.address) for function in (*first, *second)] == [
        "0000:01:00.0",
        "0000:01:00.1",
        "0000:41:00.0",
        "0000:41:00.1",
    ]
    assert {function.numa_node for function in first} == {None}
    assert {(function.numa_node, function.root) for function in second} == {(1, "pci0000:40")}


def test_the_cards_of_a_host_are_its_functions_each_once_and_ascending(machine: Machine) -> None:
    host = read_host(machine("two-cards-nested-vfio"))
    functions = [function for card in cards_of(host) for function in card]
    assert sorted(functions, key=lambda function: function.address) == list(host.functions.values())
    firsts = [card[0].address for card in cards_of(host)]
    assert firsts == sorted(firsts)
