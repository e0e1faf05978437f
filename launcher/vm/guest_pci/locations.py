"""Where each card is on the host and in the guest, and how far apart every two cards are in both."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from uuid import UUID

from launcher.vm.cards.claims import DeviceID
from launcher.vm.cards.guest import function_of, mediated
from launcher.vm.guest_pci.addresses import Layout, PCIBridge, Seat
from pci.address import PCIAddress
from pci.distance import Distance, Location, Way, distance, way
from pci.functions import is_gpu, word
from pci.host import Host
from pci.processors import UNKNOWN, Processors


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedCard:
    """A card with a seat. `name`: the entry's, with the card's address behind it for a further card of a unit, so that
    each name is unique. `host`: where a mediated device's parent is; None if sysfs does not show the card."""

    name: str
    seat: Seat
    host: Location | None
    guest: Location


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two cards and their distances; `host` is None if sysfs does not show one of them."""

    one: LocatedCard
    other: LocatedCard
    host: Distance | None
    guest: Distance

    @property
    def ways(self) -> tuple[Way | None, Way]:
        """Return the host's and the guest's distance in nvidia-smi's classes."""
        on_host = None if self.one.host is None or self.other.host is None else way(self.one.host, self.other.host)
        return on_host, way(self.one.guest, self.other.guest)

    @property
    def differs(self) -> bool:
        return self.host not in (None, self.guest)


def located_cards(layout: Layout, host: Host | None, processors: Processors = UNKNOWN) -> tuple[LocatedCard, ...]:
    """Locate the cards, in the order of the seats. `processors` are the host's."""
    names = _names(layout.seats)
    numbers, providing = layout.numbers(), {bridge.index: bridge for bridge in layout.bridges}
    return tuple(
        LocatedCard(
            name=name,
            seat=seat,
            host=_on_host(seat.hostdevs[0].source, host, processors),
            guest=_in_guest(seat, numbers, providing),
        )
        for name, seat in zip(names, layout.seats, strict=True)
    )


def pairs(cards: tuple[LocatedCard, ...]) -> tuple[Pair, ...]:
    """Return every two cards, in their order."""
    return tuple(
        Pair(
            one=one,
            other=other,
            host=None if one.host is None or other.host is None else distance(one.host, other.host),
            guest=distance(one.guest, other.guest),
        )
        for one, other in combinations(cards, 2)
    )


def what(device: DeviceID, host: Host | None) -> str | None:
    """Return GPU, audio, USB, ..., or a mediated device's type; None for an unknown function."""
    if isinstance(device, UUID):
        mdev = mediated(device, host)
        return mdev.type_name if mdev is not None else "mediated device"
    function = function_of(device, host)
    if function is None:
        return None
    return "GPU" if is_gpu(function) else word(function)


def _names(seats: tuple[Seat, ...]) -> list[str]:
    seen = set()
    names = []
    for seat in seats:
        name = seat.claim.entry.name
        names.append(f"{name} {seat.hostdevs[0].source}" if name in seen else name)
        seen.add(name)
    return names


def _on_host(device: DeviceID, host: Host | None, processors: Processors) -> Location | None:
    function = function_of(device, host)
    if function is None:
        return None
    return Location(numa_node=processors.node_of(function.numa_node), root=function.root, bridges=function.bridges)


def _in_guest(seat: Seat, numbers: Mapping[int, int], providing: Mapping[int, PCIBridge]) -> Location:
    """Return the bridges from the seat up to bus 0, or to the expander, which is a root complex in the guest. `numbers`
    and `providing`: by index, the guest's number of each bus, and the bridge that provides it."""
    bus, cell, chain = seat.bus, None, list[PCIAddress]()
    while bus in providing:
        bridge = providing[bus]
        if bridge.bus_number is not None:
            cell = bridge.cell
            break
        chain.insert(0, replace(bridge.address, bus=numbers[bridge.address.bus]))
        bus = bridge.address.bus
    return Location(numa_node=cell, root=f"pci0000:{numbers[bus]:02x}", bridges=tuple(chain))
