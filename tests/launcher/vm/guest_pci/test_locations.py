"""Where cards sit and how far apart they are, on recorded machines and in layouts that a test spells out."""

from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.vm.cards.guest import whole_cards
from launcher.vm.cpu.facts import processors_of
from launcher.vm.cpu.guest import Cell
from launcher.vm.guest_pci.addresses import Layout, PCIBridge, Seat, Upstream, layout
from launcher.vm.guest_pci.locations import LocatedCard, located_cards, pairs
from pci.address import PCIAddress
from pci.distance import Distance, Location, distance
from pci.host import Host
from pci.processors import NUMANode, Processors
from pci.sysfs.functions import read_host
from tests.conftest import Machine
from tests.launcher.cases import Case, case
from tests.launcher.vms import RTX_2060, RTX_2060_VARIABLE, cards_of, claim, entries, laid_out, read_manifest
from tests.processes import FIXTURES

VGPU = "11111111-0000-4000-8000-000000000001"


def address(text: str) -> PCIAddress:
    return PCIAddress.parse(text)


def two_cards() -> tuple[Seat, Seat]:
    environ = {RTX_2060_VARIABLE: "0000:01:00.0,0000:02:00.0"}
    one, other = laid_out(entries(gpus=[("gpu1", RTX_2060), ("gpu2", RTX_2060)]), environ).seats
    return one, other


def seated(layout: Layout, *buses: int) -> Layout:
    """Two cards on these buses of a layout that has bridges alone."""
    seats = tuple(
        Seat(claim=seat.claim, bus=bus, hostdevs=seat.hostdevs) for seat, bus in zip(two_cards(), buses, strict=True)
    )
    return Layout(bridges=layout.bridges, seats=seats)


def bridge(model: str, index: int, at: str, **others: int) -> PCIBridge:
    return PCIBridge(model=model, index=index, address=address(at), **others)  # type: ignore[arg-type]


def expander(index: int, at: str, bus_number: int, cell: int) -> PCIBridge:
    return bridge("pcie-expander-bus", index, at, bus_number=bus_number, cell=cell)


#: A root complex of cell 1 with a switch; one of cell 0 with a root port.
MIRROR = Layout(
    bridges=(
        expander(1, "0000:00:01.0", 0x40, 1),
        expander(2, "0000:00:01.1", 0x80, 0),
        bridge("pcie-root-port", 3, "0000:01:00.0"),
        bridge("pcie-switch-upstream-port", 4, "0000:03:00.0"),
        bridge("pcie-switch-downstream-port", 5, "0000:04:00.0"),
        bridge("pcie-switch-downstream-port", 6, "0000:04:01.0"),
        bridge("pcie-root-port", 7, "0000:02:00.0"),
        bridge("pcie-root-port", 8, "0000:01:00.1"),
    )
)


def distances(layout: Layout, host: Host | None = None) -> list[tuple[Distance | None, Distance]]:
    return [(pair.host, pair.guest) for pair in pairs(located_cards(layout, host))]


def of_vm(vm: str, environ: dict[str, str], host: Host | None) -> tuple[LocatedCard, ...]:
    cards = cards_of(read_manifest(FIXTURES / "vms" / f"{vm}.yaml"), environ, host)
    return located_cards(layout(cards), host)


def of_case(case: Case, vm: Path | None = None) -> tuple[LocatedCard, ...]:
    """The cards of a golden case, or of another manifest in its place."""
    start = case.world().start(vm or case.vm)
    assert start.layout is not None
    assert start.pod.sysfs is not None
    return located_cards(start.layout, start.host, processors_of(start.pod.sysfs))


def test_without_a_topology_all_cards_are_on_one_root_without_a_node() -> None:
    cards = of_case(case("hgx-a100-8-gpu"))
    assert [card.guest for card in cards[:2]] == [
        Location(numa_node=None, root="pci0000:00", bridges=(address("0000:00:01.0"),)),
        Location(numa_node=None, root="pci0000:00", bridges=(address("0000:00:01.1"),)),
    ]
    found = pairs(cards)
    assert [pair.guest for pair in found] == [Distance.ROOT] * 28
    assert [pair.host for pair in found].count(Distance.SWITCH) == 4
    assert [pair.host for pair in found].count(Distance.OTHER_NODE) == 24
    assert all(pair.differs for pair in found)


def test_a_card_below_a_switch_has_the_bridges_above_it_as_the_guest_numbers_them() -> None:
    one, other = located_cards(seated(MIRROR, 5, 7), None)
    chain = ("0000:40:00.0", "0000:41:00.0", "0000:42:00.0")
    assert one.guest == Location(numa_node=1, root="pci0000:40", bridges=tuple(map(address, chain)))
    assert other.guest == Location(numa_node=0, root="pci0000:80", bridges=(address("0000:80:00.0"),))


def test_the_guests_distances_are_those_of_its_bridges_and_cells() -> None:
    expected = {
        (5, 6): Distance.SWITCH,
        (5, 8): Distance.ROOT,
        (5, 7): Distance.OTHER_NODE,
    }
    assert {buses: distances(seated(MIRROR, *buses)) for buses in expected} == {
        buses: [(None, guest)] for buses, guest in expected.items()
    }


def test_two_root_complexes_of_one_cell_are_on_one_node() -> None:
    roots = Layout(
        bridges=(
            expander(1, "0000:00:01.0", 0x40, 0),
            expander(2, "0000:00:01.1", 0x80, 0),
            bridge("pcie-root-port", 3, "0000:01:00.0"),
            bridge("pcie-root-port", 4, "0000:02:00.0"),
        )
    )
    assert distances(seated(roots, 3, 4)) == [(None, Distance.NODE)]


@pytest.mark.parametrize("name", ["topology-mirror", "topology-numa", "two-cards-of-one-group"])
def test_a_topology_has_the_cards_as_far_apart_as_they_are(name: str) -> None:
    found = pairs(of_case(case(name)))
    assert [pair.guest for pair in found] == [pair.host for pair in found]


def test_in_cells_alone_the_cards_of_a_switch_are_on_one_root(tmp_path: Path) -> None:
    mirror, vm = case("topology-mirror"), tmp_path / "vm.yaml"
    vm.write_text(mirror.vm.read_text().replace("topology: mirror", "topology: numa"))
    found = pairs(of_case(mirror, vm))
    assert Counter((pair.host, pair.guest) for pair in found) == {
        (Distance.SWITCH, Distance.ROOT): 4,
        (Distance.OTHER_NODE, Distance.OTHER_NODE): 24,
    }


@st.composite
def hosts(draw: st.DrawFn) -> list[Location]:
    """Where up to six cards are: below bridges of any depth, on root complexes that are each on a node or on none."""
    buses: dict[tuple[int, ...], int] = {}
    nodes = draw(st.lists(st.sampled_from([None, 0, 1]), min_size=3, max_size=3))
    found = []
    for _ in range(draw(st.integers(2, 6))):
        root, *turns = draw(st.tuples(st.integers(0, 2), *[st.integers(0, 1)] * 5))
        chain = [
            PCIAddress(0, buses.setdefault((root, *turns[:depth]), len(buses)), turn, 0)
            for depth, turn in enumerate(turns)
        ]
        bridges = tuple(chain[: draw(st.integers(0, 5))])
        found.append(Location(numa_node=nodes[root], root=f"pci0000:{root:02x}", bridges=bridges))
    return found


@given(hosts())
def test_a_mirror_has_any_cards_as_far_apart_as_they_are(host: list[Location]) -> None:
    gpus = [(f"gpu{number}", RTX_2060) for number in range(len(host))]
    environ = {RTX_2060_VARIABLE: ",".join(f"0000:{number:02x}:00.0" for number in range(len(host)))}
    cards = whole_cards(*claim(entries(gpus=gpus), environ, None), None)
    upstream = {
        card: Upstream(cell=at.numa_node, root=at.root, bridges=at.bridges)
        for card, at in zip(cards, host, strict=True)
    }
    cells = tuple(Cell(vcpus=(node,), memory=1, node=node) for node in (0, 1))
    guest = [card.guest for card in located_cards(layout(cards, upstream=upstream, cells=cells), None)]
    expected = [distance(*two) for two in combinations(host, 2)]
    assert [distance(*two) for two in combinations(guest, 2)] == expected


def test_firmware_of_a_machine_of_one_node_need_not_say_where_a_card_is(machine: Machine) -> None:
    host = read_host(machine("two-gpus-one-group"))
    cards = cards_of(read_manifest(FIXTURES / "vms/one-gpu.yaml"), {RTX_2060_VARIABLE: "0000:01:00.0"}, host)
    node = NUMANode(id=0, cpus=(0, 1))
    for nodes, expected in (((), None), ((node,), 0), ((node, NUMANode(id=1, cpus=())), None)):
        card, *_ = located_cards(layout(cards), host, Processors(nodes=nodes))
        assert card.host is not None
        assert card.host.numa_node == expected


def test_a_distance_that_is_not_known_on_the_host_differs_from_nothing() -> None:
    (pair,) = pairs(located_cards(seated(MIRROR, 5, 6), None))
    assert not pair.differs


def test_a_units_further_card_is_told_by_its_address(machine: Machine) -> None:
    environ = {RTX_2060_VARIABLE: "0000:01:00.0", "MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4-1Q": VGPU}
    cards = of_vm("unit-of-two-cards", environ, read_host(machine("two-gpus-one-group")))
    pair, vgpu, further = cards
    assert further.name == f"{pair.name} 0000:02:00.0"
    assert (vgpu.host, pairs((pair, further))[0].host) == (None, Distance.ROOT)
