"""Where each card is, on the host and in the guest, and how far apart every two of them are here and there."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from uuid import UUID

from launcher.claims import DeviceID
from launcher.guest_pci.addresses import Layout, PCIBridge, Seat
from launcher.hostdevs import function_of, mediated
from pci.address import PCIAddress
from pci.distance import Distance, Location, Way, distance, way
from pci.functions import is_gpu, word
from pci.host import Host
from pci.processors import UNKNOWN, Processors


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedCard:
    """A card with a seat. `name` is the entry's, or, for a further card of a unit, with the card's address behind it;
    no two have the same. `host` is None where the card was not found in sysfs; a mediated device is where its parent
    is."""

    name: str
    seat: Seat
    host: Location | None
    guest: Location


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two cards; `host` is None where one of them was not found in sysfs."""

    one: LocatedCard
    other: LocatedCard
    host: Distance | None
    guest: Distance

    @property
    def ways(self) -> tuple[Way | None, Way]:
        """The host's and the guest's, as nvidia-smi has them."""
        on_host = None if self.one.host is None or self.other.host is None else way(self.one.host, self.other.host)
        return on_host, way(self.one.guest, self.other.guest)

    @property
    def differs(self) -> bool:
        return self.host not in (None, self.guest)


def located_cards(layout: Layout, host: Host | None, processors: Processors = UNKNOWN) -> tuple[LocatedCard, ...]:
    """In the order of the seats. `processors` are the host's."""
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
    """Every two, in their order."""
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
    """GPU, audio, USB, ...; a mediated device's type; None for a function that is not known."""
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
    """From the seat up to bus 0, or to the expander that is a root complex of its own in the guest.

    By index: the number that the guest gives each bus, and the bridge that provides it.
    """
    bus, cell, chain = seat.bus, None, list[PCIAddress]()
    while bus in providing:
        bridge = providing[bus]
        if bridge.bus_number is not None:
            cell = bridge.cell
            break
        chain.insert(0, replace(bridge.address, bus=numbers[bridge.address.bus]))
        bus = bridge.address.bus
    return Location(numa_node=cell, root=f"pci0000:{numbers[bus]:02x}", bridges=tuple(chain))
