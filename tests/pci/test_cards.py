"""Which functions are one card, on recorded machines."""

from pathlib import Path

import pytest

from pci.address import PCIAddress
from pci.cards import card_of, cards_of
from pci.functions import is_integrated_gpu
from pci.sysfs.functions import read_host
from tests.compose import Function, bridge, compose
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


GPP = "pci0000:00/0000:00:08.1"
#: By what it is: functions of a node, and whether the first one is the processor's own GPU.
GPUS = {
    "an Intel desktop's": (True, ["0000:00:02.0 8086:3e92 030000"]),
    "a Kaveri's": (True, ["0000:00:01.0 1002:1304 030000"]),
    "a Ryzen's": (True, ["0000:0f:00.0 1002:164e 030000", "0000:0f:00.2 1022:1649 108000"]),
    "a Radeon card": (False, ["0000:0f:00.0 1002:73bf 030000", "0000:0f:00.2 1002:73a6 0c0330"]),
    "an Arc card": (False, ["0000:03:00.0 8086:56a0 030000"]),
    "an NVIDIA card on a virtual machine's root bus": (False, ["0000:00:02.0 10de:1eb8 030200"]),
    "a processor's host bridge": (False, ["0000:00:02.0 8086:3ec2 060000"]),
}  # fmt: skip


@pytest.mark.parametrize("what", GPUS)
def test_the_processors_own_gpu_is_told_from_a_card(tmp_path: Path, what: str) -> None:
    integrated, lines = GPUS[what]
    functions = [
        Function(address=address, id=ids, pci_class=int(pci_class, 16), group=1,
                 path="pci0000:00" if address.startswith("0000:00:") else GPP)
        for address, ids, pci_class in map(str.split, lines)
    ]  # fmt: skip
    compose(tmp_path / "sys", [bridge("0000:00:08.1", "1022:14dd", path="pci0000:00", group=1), *functions])
    host = read_host(tmp_path / "sys")
    assert is_integrated_gpu(host, host.functions[PCIAddress.parse(functions[0].address)]) is integrated


def test_a_virtual_function_of_the_processors_gpu_is_for_guests(tmp_path: Path) -> None:
    gpu, virtual = (
        Function(address=f"0000:00:02.{number}", id="8086:a780", pci_class=0x030000, path="pci0000:00", group=number,
                 physfn="0000:00:02.0" if number else None)
        for number in (0, 1)
    )  # fmt: skip
    compose(tmp_path / "sys", [gpu, virtual])
    host = read_host(tmp_path / "sys")
    assert [is_integrated_gpu(host, function) for function in host.functions.values()] == [True, False]
