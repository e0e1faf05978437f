from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.addresses import SEATS, HostDev, Layout, layout, usb
from launcher.claims import Claim, Entry, EntryKind
from launcher.errors import UserError
from launcher.hostdevs import Card
from pci.address import PCIAddress
from pci.resource import USBAddress


def card(number: int, functions: list[int], claimed: int | None = None) -> Card:
    """A card at host bus `number` with these functions, the first of them claimed unless told."""
    addresses = tuple(PCIAddress(0, number, 0, function) for function in functions)
    entry = Entry(kind=EntryKind.GPU, name=f"gpu{number}", wants="example.com/gpu")
    device = addresses[0] if claimed is None else PCIAddress(0, number, 0, claimed)
    return Card(claim=Claim(entry=entry, device=device, variable=None), functions=addresses, missing=None)


def devices(found: Layout) -> list[HostDev]:
    return [device for seat in found.seats for device in seat.hostdevs]


function_sets = st.lists(st.integers(0, 7), min_size=1, unique=True).map(sorted)
cards = st.lists(function_sets, max_size=SEATS).map(
    lambda sets: tuple(card(number, functions) for number, functions in enumerate(sets))
)


@given(cards)
def test_no_two_devices_share_an_address_and_every_bus_is_a_root_ports(given: tuple[Card, ...]) -> None:
    found = layout(given)
    used = [bridge.address for bridge in found.bridges] + [device.address for device in devices(found)]
    assert len(used) == len(set(used))
    assert len({seat.bus for seat in found.seats}) == len(found.seats)
    assert {device.address.bus for device in devices(found)} == {bridge.index for bridge in found.bridges}


@given(cards)
def test_every_seat_has_function_0_and_says_multifunction_when_it_has_more(given: tuple[Card, ...]) -> None:
    for found in layout(given).seats:
        first, *companions = found.hostdevs
        assert (first.address.function, first.multifunction) == (0, bool(companions))
        assert not any(device.multifunction for device in companions)


@given(cards, st.data())
def test_a_seat_depends_on_the_place_in_the_manifest_and_on_nothing_else(
    given: tuple[Card, ...], data: st.DataObject
) -> None:
    shorter = given[: data.draw(st.integers(0, len(given)))]
    found, all_of_them = layout(shorter), layout(given)
    assert found.seats == all_of_them.seats[: len(shorter)]
    assert found.bridges == all_of_them.bridges[: len(shorter)]


@given(cards)
def test_ports_are_ordered_as_a_firmware_numbers_them(given: tuple[Card, ...]) -> None:
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
    vgpu = Card(claim=Claim(entry=entry, device=UUID(int=1), variable=None), functions=(), missing=None)
    found = layout((card(1, [0]), vgpu))
    assert (found.bridges[1].address, found.seats[1].hostdevs[0].address) == (
        PCIAddress(0, 0, 1, 1),
        PCIAddress(0, 2, 0, 0),
    )


def test_there_are_seats_for_32() -> None:
    full = tuple(card(number, [0, 1]) for number in range(SEATS))
    assert layout(full).bridges[-1].address == PCIAddress(0, 0, 4, 7)
    with pytest.raises(UserError, match="have 33 entries; a guest has seats for 32"):
        layout((*full, card(99, [0])))


def test_a_usb_device_has_no_seat_and_takes_none() -> None:
    entry = Entry(kind=EntryKind.HOST_DEVICE, name="stick", wants="example.com/usb")
    stick = Card(claim=Claim(entry=entry, device=USBAddress(1, 3), variable="V"), functions=(), missing=None)
    assert layout((stick, card(1, [0]))) == layout((card(1, [0]),))
    assert usb((stick, card(1, [0]))) == (stick.claim,)


def test_cards_that_come_along_count_for_the_seats_and_are_named_apart() -> None:
    full = tuple(card(number, [0]) for number in range(SEATS))
    along = Card(claim=full[0].claim, functions=(PCIAddress(0, 99, 0, 0),), missing=None)
    with pytest.raises(UserError) as error:
        layout((*full, along))
    assert str(error.value) == (
        "gpus and hostDevices have 32 entries and bring 1 other cards of their IOMMU groups along; "
        "a guest has seats for 32"
    )
    *_, last = layout((*full[:2], along)).seats
    assert ([device.alias for device in last.hostdevs], last.claim) == ([None], full[0].claim)
