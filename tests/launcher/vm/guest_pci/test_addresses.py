from dataclasses import replace
from itertools import combinations, takewhile
from typing import NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.vm.cards.claims import Claim, Entry, EntryKind
from launcher.vm.cards.guest import GuestCard
from launcher.vm.cpu.guest import Cell
from launcher.vm.guest import SEATS
from launcher.vm.guest_pci.addresses import SCREEN, HostDev, Layout, Upstream, layout, usb
from pci.address import PCIAddress
from pci.resource import USBAddress
from program.errors import UserError


def card(number: int, functions: list[int], claimed: int | None = None) -> GuestCard:
    """A card at host bus `number` with these functions, the first of them claimed unless told."""
    addresses = tuple(PCIAddress(0, number, 0, function) for function in functions)
    entry = Entry(kind=EntryKind.GPU, name=f"gpu{number}", wants="example.com/gpu")
    device = addresses[0] if claimed is None else PCIAddress(0, number, 0, claimed)
    return GuestCard(claim=Claim(entry=entry, device=device, variable=None), functions=addresses, missing=None)


class Way(NamedTuple):
    """How a card hangs on a machine: host or guest."""

    root: str
    node: int | None
    switches: tuple[str, ...]


def devices(found: Layout) -> list[HostDev]:
    return [device for seat in found.seats for device in seat.hostdevs]


function_sets = st.lists(st.integers(0, 7), min_size=1, unique=True).map(sorted)
cards = st.lists(function_sets, max_size=SEATS).map(
    lambda sets: tuple(card(number, functions) for number, functions in enumerate(sets))
)


@st.composite
def pins(draw: st.DrawFn, given: tuple[GuestCard, ...]) -> dict[str, int]:
    """Some of the cards on seats of their own, anywhere."""
    names = [card.claim.entry.name for card in given]
    pinned = draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    return dict(zip(pinned, draw(st.permutations(range(SEATS))), strict=False))


@st.composite
def pinned_layouts(draw: st.DrawFn) -> Layout:
    given = draw(cards)
    return layout(given, draw(pins(given)))


@st.composite
def numa_layouts(draw: st.DrawFn) -> Layout:
    """Cards in up to four cells, in none, on seats that are pinned or not."""
    given = draw(cards)
    number = draw(st.integers(1, 4))
    place = st.builds(Upstream, cell=st.none() | st.integers(0, number - 1))
    return layout(given, draw(pins(given)), {card: draw(place) for card in given}, cells(number))


@st.composite
def host_trees(draw: st.DrawFn) -> dict[GuestCard, Upstream]:
    """Cards behind up to two levels of switches below up to four roots, in two cells or in none."""
    roots = {f"pci0000:{root}0": draw(st.sampled_from((None, 0, 1))) for root in range(4)}
    found = {}
    for card in draw(cards):
        root = draw(st.sampled_from(sorted(roots)))
        way = draw(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), max_size=2))
        bridges = [PCIAddress(0, int(root[-2]) << 4, draw(st.integers(1, 3)), 0)]
        for level, (switch, port) in enumerate(way):
            # Upstream ports below one port are one, whichever port it is that they are below.
            bridges.append(PCIAddress(0, bridges[-1].bus + 1, bridges[-1].slot, 0))
            bridges.append(PCIAddress(0, bridges[-1].bus + 1, switch * 4 + port, level))
        found[card] = Upstream(cell=roots[root], root=root, bridges=tuple(bridges))
    return found


def cells(number: int) -> tuple[Cell, ...]:
    return tuple(Cell(vcpus=(cell,), memory=1 << 30, node=cell) for cell in range(number))


mirrored_layouts = host_trees().filter(lambda places: fits(places)).map(lambda places: mirrored(places))
layouts = st.one_of(cards.map(layout), pinned_layouts(), numa_layouts(), mirrored_layouts)


def mirrored(places: dict[GuestCard, Upstream]) -> Layout:
    return layout(tuple(places), {}, places, cells(2))


def fits(places: dict[GuestCard, Upstream]) -> bool:
    try:
        mirrored(places)
    except UserError:
        return False
    return True


@given(layouts)
def test_no_two_devices_share_an_address_and_every_bus_has_a_bridge(found: Layout) -> None:
    used = [SCREEN, *(bridge.address for bridge in found.bridges), *(device.address for device in devices(found))]
    assert len(used) == len(set(used))
    assert len({seat.bus for seat in found.seats}) == len(found.seats)
    assert [bridge.index for bridge in found.bridges] == list(range(1, len(found.bridges) + 1))
    # Libvirt's bus is a bridge's index, and QEMU makes the bridges in their order.
    assert all(bridge.address.bus < bridge.index for bridge in found.bridges)
    assert {seat.bus for seat in found.seats} <= {bridge.index for bridge in found.bridges}


@given(layouts)
def test_every_slot_has_function_0(found: Layout) -> None:
    used = {bridge.address for bridge in found.bridges} | {device.address for device in devices(found)}
    assert {replace(address, function=0) for address in used} <= used


@given(layouts)
def test_the_guests_bus_numbers_are_each_bridges_own_and_those_of_an_expander_are_one_range(found: Layout) -> None:
    numbers = found.numbers()
    assert len(set(numbers.values())) == len(found.bridges) + 1
    roots = {bridge.index: bridge.index for bridge in found.bridges if bridge.bus_number is not None}
    ranges: dict[int, list[int]] = {0: [0]}
    for bridge in found.bridges:
        root = roots.setdefault(bridge.index, roots.get(bridge.address.bus, 0))
        ranges.setdefault(root, []).append(numbers[bridge.index])
    for of_one in ranges.values():
        assert sorted(of_one) == list(range(of_one[0], of_one[0] + len(of_one)))
    # What libvirt puts on bus 0 by itself has numbers up to the lowest expander's.
    lowest = min((numbers[root] for root in ranges if root), default=256)
    assert lowest >= 256 - 132
    assert max(numbers.values()) <= 255


@given(layouts)
def test_a_bridge_is_below_what_it_can_be_plugged_into(found: Layout) -> None:
    models = {0: "pcie-root", **{bridge.index: bridge.model for bridge in found.bridges}}
    below = {
        "pcie-expander-bus": {"pcie-root"},
        "pcie-root-port": {"pcie-root", "pcie-expander-bus"},
        "pcie-switch-upstream-port": {"pcie-root-port", "pcie-switch-downstream-port"},
        "pcie-switch-downstream-port": {"pcie-switch-upstream-port"},
    }
    assert all(models[bridge.address.bus] in below[bridge.model] for bridge in found.bridges)
    taken = {seat.bus for seat in found.seats} | {bridge.address.bus for bridge in found.bridges} | {0}
    assert {address.bus for address in found.free} == set(models) - taken
    assert {models[seat.bus] for seat in found.seats} <= {"pcie-root-port", "pcie-switch-downstream-port"}
    assert len({bridge.chassis for bridge in found.bridges if bridge.chassis}) == sum(
        bridge.chassis is not None for bridge in found.bridges
    )


def distance(one: Way, other: Way) -> str:
    """Of two cards, each by its root, its root's node or cell, and its switches, from the root down."""
    if one.root == other.root:
        return "same switch" if one.switches[:1] == other.switches[:1] != () else "same root"
    return "same node" if one.node == other.node else "other node"


def levels(one: Way, other: Way) -> int:
    """How many switches two cards of one root are both behind."""
    pairs = zip(one.switches, other.switches, strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


def in_guest(found: Layout) -> list[Way]:
    """Of each seat."""
    bridges = {bridge.index: bridge for bridge in found.bridges}
    ways = []
    for seat in found.seats:
        above = [bridges[seat.bus]]
        while above[0].address.bus:
            above.insert(0, bridges[above[0].address.bus])
        switches = [bridge.index for bridge in above if bridge.model == "pcie-switch-upstream-port"]
        ways.append(Way(root=str(above[0].index), node=above[0].cell, switches=tuple(map(str, switches))))
    return ways


def on_host(place: Upstream) -> Way:
    # A port that leads to two switches is nothing that a host has: port and upstream port together are one.
    return Way(root=place.root or "", node=place.cell, switches=tuple(map(str, place.bridges[1::2])))


@given(host_trees().filter(fits))
def test_mirror_keeps_the_distance_of_every_two_cards(places: dict[GuestCard, Upstream]) -> None:
    host, guest = [on_host(place) for place in places.values()], in_guest(mirrored(places))
    for one, other in combinations(range(len(places)), 2):
        assert distance(guest[one], guest[other]) == distance(host[one], host[other])
        if host[one].root == host[other].root:
            assert levels(guest[one], guest[other]) == levels(host[one], host[other])


@given(numa_layouts())
def test_numa_has_a_card_in_its_cell_or_on_bus_0(found: Layout) -> None:
    assert all(way.switches == () for way in in_guest(found))
    expanders = [bridge for bridge in found.bridges if bridge.model == "pcie-expander-bus"]
    # One for each cell that has a card, in the order of cells, with the same number whatever else there is.
    owning = sorted({way.node for way in in_guest(found) if way.node is not None})
    assert [expander.cell for expander in expanders] == owning
    width = min(33, 132 // len(found.cells))
    assert [expander.bus_number for expander in expanders] == [256 - width * (cell + 1) for cell in owning]


@given(cards, st.data())
def test_a_pinned_card_stays_whatever_becomes_of_the_others(given: tuple[GuestCard, ...], data: st.DataObject) -> None:
    pinned = data.draw(pins(given))
    fewer = tuple(card for card in given if card.claim.entry.name in pinned or data.draw(st.booleans()))
    places = {card: Upstream(cell=data.draw(st.none() | st.integers(0, 2))) for card in given}
    before, after = layout(given, pinned, places, cells(3)), layout(fewer, pinned, places, cells(3))
    seen = before.guest_addresses(), after.guest_addresses()
    for device in devices(after):
        if device.claim is not None and device.claim.entry.name in pinned:
            (same,) = (other for other in devices(before) if other.source == device.source)
            assert seen[0][same] == seen[1][device]
            assert seen[1][device].bus in (pinned[device.claim.entry.name] + base for base in (1, 158, 191, 224))


@given(cards, st.data())
def test_what_is_not_pinned_has_the_lowest_seats_that_are_free(
    given: tuple[GuestCard, ...], data: st.DataObject
) -> None:
    pinned = data.draw(pins(given))
    found = layout(given, pinned)
    free = [seat for seat in range(SEATS) if seat not in pinned.values()]
    others = [seat.bus - 1 for seat in found.seats if seat.claim.entry.name not in pinned]
    assert others == free[: len(others)]


def test_what_does_not_fit_the_bus_numbers_is_refused() -> None:
    one = card(1, [0])
    with pytest.raises(
        UserError, match=r"'gpu1': would have seat 0 in its NUMA cell, and with 67 cells .* for 0 seats"
    ):
        layout((one,), {}, {one: Upstream(cell=5)}, cells(67))
    full = tuple(card(number, [0]) for number in range(1, SEATS + 1))
    bridges = {each: tuple(PCIAddress(0, n, bus, 0) for bus in range(5)) for n, each in enumerate(full)}
    places = {each: Upstream(root="pci0000:00", bridges=bridges[each]) for each in full}
    with pytest.raises(
        UserError, match="would take 161 bus numbers of the guest's, and there is room for 132; expected"
    ):
        layout(full, {}, places)


def test_functions_of_one_host_bus_and_those_behind_old_pci_have_ports_of_their_own_in_the_mirror() -> None:
    given = tuple(card(number, [0]) for number in range(1, 5))
    port, upstream, downstream, old = (PCIAddress(0, bus, 1, 0) for bus in range(4))
    chains = ((port, upstream, downstream), (port, upstream, downstream), (port, upstream, downstream, old), ())
    places = {one: Upstream(root="pci0000:00", bridges=chain) for one, chain in zip(given, chains, strict=True)}
    found = layout(given, {}, places)
    assert [(bridge.model.removeprefix("pcie-"), str(bridge.address)) for bridge in found.bridges] == [
        ("expander-bus", "0000:00:06.0"),
        ("root-port", "0000:01:00.0"),
        ("root-port", "0000:01:00.1"),
        ("switch-upstream-port", "0000:03:00.0"),
        ("switch-downstream-port", "0000:04:00.0"),
        ("switch-downstream-port", "0000:04:01.0"),
        ("switch-downstream-port", "0000:04:02.0"),
    ]
    assert [str(address) for address in found.guest_addresses().values()] == [
        "0000:fd:00.0",
        "0000:fe:00.0",
        "0000:ff:00.0",
        "0000:fa:00.0",
    ]


@given(cards)
def test_every_seat_has_function_0_and_says_multifunction_when_it_has_more(given: tuple[GuestCard, ...]) -> None:
    for found in layout(given).seats:
        first, *companions = found.hostdevs
        assert (first.address.function, first.multifunction) == (0, bool(companions))
        assert not any(device.multifunction for device in companions)


@given(cards, st.data())
def test_a_seat_depends_on_the_place_in_the_manifest_and_on_nothing_else(
    given: tuple[GuestCard, ...], data: st.DataObject
) -> None:
    shorter = given[: data.draw(st.integers(0, len(given)))]
    found, all_of_them = layout(shorter), layout(given)
    assert found.seats == all_of_them.seats[: len(shorter)]
    assert found.bridges == all_of_them.bridges[: len(shorter)]


@given(cards)
def test_ports_are_ordered_as_a_firmware_numbers_them(given: tuple[GuestCard, ...]) -> None:
    ports = [bridge.address for bridge in layout(given).bridges]
    assert ports == sorted(ports)
    assert all(port.bus == 0 and 1 <= port.slot <= 4 for port in ports)
    assert all(PCIAddress(0, 0, port.slot, 0) in ports for port in ports)


def test_functions_keep_their_numbers() -> None:
    (found,) = layout((card(1, [0, 1, 3]),)).seats
    assert [device.address.function for device in found.hostdevs] == [0, 1, 3]


def test_without_host_function_0_the_lowest_becomes_it() -> None:
    (found,) = layout((card(1, [1, 3]),)).seats
    assert [(device.source.function, device.address.function) for device in found.hostdevs] == [(1, 0), (3, 3)]  # type: ignore[union-attr]


def test_the_alias_is_on_the_claimed_function_alone() -> None:
    (found,) = layout((card(1, [0, 1], claimed=1),)).seats
    assert [device.alias for device in found.hostdevs] == [None, "ua-gpu-gpu1"]


def test_a_mediated_device_has_a_seat_like_a_card() -> None:
    entry = Entry(kind=EntryKind.GPU, name="v", wants="nvidia.com/GRID")
    vgpu = GuestCard(claim=Claim(entry=entry, device=UUID(int=1), variable=None), functions=(), missing=None)
    found = layout((card(1, [0]), vgpu))
    assert (found.bridges[1].address, found.seats[1].hostdevs[0].address) == (
        PCIAddress(0, 0, 1, 1),
        PCIAddress(0, 2, 0, 0),
    )


def test_there_are_seats_for_32() -> None:
    full = tuple(card(number, [0, 1]) for number in range(SEATS))
    assert layout(full).bridges[-1].address == PCIAddress(0, 0, 4, 7)
    with pytest.raises(UserError, match="have 33 entries; expected at most 32 cards"):
        layout((*full, card(99, [0])))


def test_a_usb_device_has_no_seat_and_takes_none() -> None:
    entry = Entry(kind=EntryKind.HOST_DEVICE, name="stick", wants="example.com/usb")
    stick = GuestCard(claim=Claim(entry=entry, device=USBAddress(1, 3), variable="V"), functions=(), missing=None)
    assert layout((stick, card(1, [0]))) == layout((card(1, [0]),))
    assert usb((stick, card(1, [0]))) == (stick.claim,)


def test_cards_that_come_along_count_for_the_seats_and_are_named_apart() -> None:
    full = tuple(card(number, [0]) for number in range(SEATS))
    along = GuestCard(claim=full[0].claim, functions=(PCIAddress(0, 99, 0, 0),), missing=None)
    with pytest.raises(UserError) as error:
        layout((*full, along))
    assert str(error.value) == (
        "gpus and hostDevices: have 32 entries and bring 1 other cards of their IOMMU groups along; "
        "expected at most 32 cards, for which a guest has seats"
    )
    *_, last = layout((*full[:2], along)).seats
    assert ([device.alias for device in last.hostdevs], last.claim) == ([None], full[0].claim)


def test_a_pin_is_for_an_entrys_own_card_and_not_for_those_of_its_unit() -> None:
    first, second = card(1, [0]), card(2, [0])
    along = GuestCard(claim=first.claim, functions=(PCIAddress(0, 9, 0, 0),), missing=None)
    found = layout((first, second, along), {"gpu1": 2})
    assert [seat.bus for seat in found.seats] == [3, 1, 2]
    assert layout((first, second, along), {"gpu1": 0}) == layout((first, second, along))


def joined(number: int, to: GuestCard, functions: list[int]) -> GuestCard:
    """Another entry's functions of the same card."""
    device, *_ = addresses = tuple(replace(to.functions[0], function=function) for function in functions)
    entry = Entry(kind=EntryKind.HOST_DEVICE, name=f"dev{number}", wants="example.com/audio")
    claim = Claim(entry=entry, device=device, variable=None)
    return GuestCard(claim=claim, functions=addresses, missing=None, joins=to.claim)


def test_two_entries_for_one_card_are_on_one_slot_and_move_nobody() -> None:
    gpu, other = card(1, [0, 2]), card(2, [0])
    audio = joined(3, gpu, [1])
    found = layout((gpu, audio, other))
    assert [(str(device.source), str(device.address), device.alias) for device in devices(found)] == [
        ("0000:01:00.0", "0000:01:00.0", "ua-gpu-gpu1"),
        ("0000:01:00.1", "0000:01:00.1", "ua-hostdevice-dev3"),
        ("0000:01:00.2", "0000:01:00.2", None),
        ("0000:02:00.0", "0000:03:00.0", "ua-gpu-gpu2"),
    ]
    assert [device.multifunction for device in devices(found)] == [True, False, False, False]
    apart = layout((gpu, replace(audio, joins=None), other))
    assert found.seats[-1] == apart.seats[-1]
    assert [str(seat) for seat in found.free] == ["0000:02:00.0"]


def test_an_entry_for_a_function_of_a_card_keeps_the_seat_that_it_is_pinned_to() -> None:
    gpu = card(1, [0])
    audio = joined(2, gpu, [1])
    assert [seat.bus for seat in layout((gpu, audio), {"dev2": 5}).seats] == [1, 6]
    assert [seat.bus for seat in layout((gpu, audio), {"gpu1": 5}).seats] == [6]


@pytest.mark.parametrize(
    "upstream", [Upstream(cell=0), Upstream(root="pci0000:40", bridges=(PCIAddress(0, 64, 1, 0),))]
)
def test_two_entries_for_one_card_are_on_one_slot_below_an_expander(upstream: Upstream) -> None:
    gpu = card(1, [0])
    audio = joined(2, gpu, [1])
    found = layout((gpu, audio), {}, {gpu: upstream, audio: Upstream()}, (Cell(vcpus=(0,), memory=1, node=0),))
    (seat,) = found.seats
    assert [device.address.function for device in seat.hostdevs] == [0, 1]
    assert len([bridge for bridge in found.bridges if bridge.model == "pcie-root-port"]) == 1
