"""Distances on the recorded machines, and what their classes are by."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pci.address import PCIAddress
from pci.distance import Distance, Location, Way, distance, way
from pci.host import Function
from pci.sysfs.functions import read_host
from tests.conftest import Machine


def location(function: Function) -> Location:
    return Location(numa_node=function.numa_node, root=function.root, bridges=function.bridges)


@pytest.mark.parametrize(
    ("name", "one", "other", "expected"),
    [
        ("hgx-a100-8-gpu", "0000:07:00.0", "0000:0f:00.0", Distance.SWITCH),
        ("hgx-a100-8-gpu", "0000:07:00.0", "0000:0c:00.0", Distance.SWITCH),
        ("hgx-a100-8-gpu", "0000:07:00.0", "0000:47:00.0", Distance.OTHER_NODE),
        ("two-rtx-3090", "0000:e1:00.0", "0000:01:00.0", Distance.OTHER_NODE),
        ("two-gpus-one-group", "0000:01:00.0", "0000:02:00.0", Distance.ROOT),
        ("rtx-2060", "0000:00:02.0", "0000:01:00.0", Distance.ROOT),
        ("rtx-2060", "0000:01:00.0", "0000:01:00.1", Distance.ROOT),
        ("lab-modern", "0000:04:00.0", "0000:05:00.0", Distance.SWITCH),
        ("lab-modern", "0000:01:00.0", "0000:04:00.0", Distance.ROOT),
    ],
)
def test_two_cards_of_a_machine(machine: Machine, name: str, one: str, other: str, expected: Distance) -> None:
    functions = read_host(machine(name)).functions
    locations = [location(functions[PCIAddress.parse(address)]) for address in (one, other)]
    assert distance(*locations) is expected


def test_root_complexes_are_on_one_node_only_where_the_firmware_says_so() -> None:
    one, other = (Location(numa_node=0, root=root, bridges=()) for root in ("pci0000:00", "pci0000:40"))
    assert distance(one, other) is Distance.NODE
    one, other = (Location(numa_node=None, root=root, bridges=()) for root in ("pci0000:00", "pci0000:40"))
    assert distance(one, other) is Distance.OTHER_NODE


def test_two_ports_of_one_bridge_to_conventional_pci_are_not_below_a_switch() -> None:
    chain = (PCIAddress(0, 0, 1, 0), PCIAddress(0, 1, 0, 0))
    one = Location(numa_node=0, root="pci0000:00", bridges=chain)
    assert distance(one, one) is Distance.ROOT


ports = st.builds(PCIAddress, st.just(0), st.integers(0, 3), st.just(0), st.just(0))
locations = st.builds(
    Location,
    numa_node=st.none() | st.integers(0, 1),
    root=st.sampled_from(["pci0000:00", "pci0000:40"]),
    bridges=st.lists(ports, max_size=4).map(tuple),
)


@given(locations, locations)
def test_it_is_as_far_there_as_back(one: Location, other: Location) -> None:
    assert distance(one, other) is distance(other, one)


@pytest.mark.parametrize(
    ("name", "one", "other", "expected"),
    [
        ("hgx-a100-8-gpu", "0000:07:00.0", "0000:0f:00.0", Way.PXB),  # as nvidia-smi topo -m has it on a DGX A100
        ("lab-modern", "0000:04:00.0", "0000:05:00.0", Way.PIX),
        ("two-gpus-one-group", "0000:01:00.0", "0000:02:00.0", Way.PHB),
        ("two-rtx-3090", "0000:e1:00.0", "0000:01:00.0", Way.SYS),
    ],
)
def test_two_cards_of_a_machine_as_nvidia_smi_tells_it(
    machine: Machine, name: str, one: str, other: str, expected: Way
) -> None:
    functions = read_host(machine(name)).functions
    assert way(*(location(functions[PCIAddress.parse(address)]) for address in (one, other))) is expected


def test_two_root_complexes_of_one_node_are_nvidia_smis_node() -> None:
    one, other = (Location(numa_node=0, root=root, bridges=()) for root in ("pci0000:00", "pci0000:40"))
    assert way(one, other) is Way.NODE
