"""Seats: where each card sits on the guest's PCI Express, layout version 1 (docs/guest-pci.md).

A guest remembers its devices by address (Windows, udev, CUDA's order), so libvirt does not choose the addresses. Each
card has a seat: a root port of its own. Its address depends only on the card's place in the manifest, or on the seat
that the manifest pins it to. The ports come first on bus 0, eight functions to a slot from 00:01.0 on: firmware numbers
the buses behind them depth first in slot order, so the VM's other devices come later and move no card. For the same
reason a free seat below a taken one has a port.

A card that comes along with another (launcher.vm.cards.guest) sits behind all entries' cards, so that it moves none of
them. A USB device has no seat: libvirt gives it a port of the guest's USB controller.

Two entries with functions of one card are on the seat of the first. The seat of the other stays free: whether they are
of one card depends on the node, and must not move the cards behind them.

On a seat the card's functions keep their numbers on slot 0. If host function 0 is not passed on, the lowest one becomes
function 0, without which a guest finds none of the others.

A card with an Upstream is not on bus 0, but below an expander: a root bus of its own, in one of the guest's NUMA cells.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from operator import itemgetter
from types import MappingProxyType
from typing import Literal
from uuid import UUID

from launcher.vm.cards.claims import Claim, DeviceID
from launcher.vm.cards.guest import GuestCard
from launcher.vm.cpu.guest import Cell
from launcher.vm.guest import SEATS, SEATS_OF, TOPOLOGY
from pci.address import PCIAddress
from pci.resource import USBAddress
from program.errors import UserError

_FIRST_SLOT = 1  # the first after the host bridge: libvirt puts its own ports into the first slot that is free
_PORTS_PER_SLOT = 8
_LAST_BUS = 255
#: The address of the emulated screen: on the first slot after all seats, taken or not. On bus 0, since firmware takes
#: the first VGA that is not behind a bridge, as a passed-through card is.
SCREEN = PCIAddress(domain=0, bus=0, slot=_FIRST_SLOT + SEATS // _PORTS_PER_SLOT, function=0)
_FIRST_EXPANDER_SLOT = SCREEN.slot + 1
#: The expanders have so many of the 256 bus numbers, the highest; 123 are left for all bridges behind bus 0. Four cells
#: with 32 seats each fit, or sixteen with 7.
_BUSES_OF_EXPANDERS = 4 * (1 + SEATS)

ControllerModel = Literal[
    "pcie-expander-bus", "pcie-root-port", "pcie-switch-upstream-port", "pcie-switch-downstream-port"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDev:
    """One <hostdev>: the host's `source`, and its `address` in the guest, whose bus is the index of its controller in
    libvirt. `claim` is None for a companion, which no entry names."""

    source: PCIAddress | UUID
    address: PCIAddress
    claim: Claim | None
    multifunction: bool

    @property
    def alias(self) -> str | None:
        return self.claim.alias if self.claim is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PCIBridge:
    """A PCI controller of the guest, which is at `address` and provides the bus `index`, as libvirt counts.

    `chassis` and `port`: the physical slot that a guest shows for a root port or a switch's downstream port. Only a
    pcie-expander-bus has a `bus_number` (libvirt's busNr, the bus's number in the guest), and perhaps a NUMA `cell`.
    """

    model: ControllerModel
    index: int
    address: PCIAddress
    chassis: int | None = None
    port: int | None = None
    bus_number: int | None = None
    cell: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A card's place, slot 0 of bus `bus`, with its functions there.

    `claim`: the card's own, the first of several, or that of the card that brought it along. `misplaced`: why the card
    is not where the topology would have it, in words that follow "gpu 'gpu1': "; None if it is.
    """

    claim: Claim
    bus: int
    hostdevs: tuple[HostDev, ...]
    misplaced: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The expander above a card's seat: that of the guest's NUMA cell `cell`; or one that mirrors the host's root
    complex `root` (`pci0000:40`), with copies of the host's `bridges`, and in `cell` or in none.

    Without `cell` and `root`, the card is on bus 0. `misplaced`: the seat's.
    """

    cell: int | None = None
    root: str | None = None
    bridges: tuple[PCIAddress, ...] = ()
    misplaced: str | None = None

    @property
    def on_bus_0(self) -> bool:
        return self.cell is None and self.root is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Our part of the guest's PCI Express: the bridges, by index, and the seats, in the order of the cards.

    `cells`: all NUMA cells of the guest, also those without cards.
    """

    bridges: tuple[PCIBridge, ...] = ()
    seats: tuple[Seat, ...] = ()
    cells: tuple[Cell, ...] = ()

    @property
    def free(self) -> tuple[PCIAddress, ...]:
        """Return the free seats below those that are taken."""
        behind = {seat.bus for seat in self.seats} | {bridge.address.bus for bridge in self.bridges}
        ports = (bridge for bridge in self.bridges if bridge.model == "pcie-root-port")
        return tuple(PCIAddress(0, port.index, 0, 0) for port in ports if port.index not in behind)

    def numbers(self) -> Mapping[int, int]:
        """Return the number that firmware gives each bus, by libvirt's index: depth first, in the order of slots; from
        1 on behind bus 0, from its bus_number on behind an expander."""
        below: dict[int, list[PCIBridge]] = {}
        for bridge in sorted(self.bridges, key=lambda bridge: bridge.address):
            below.setdefault(bridge.address.bus, []).append(bridge)
        numbers = {0: 0}

        def number(bus: int, last: int) -> int:
            for bridge in below.get(bus, ()):
                if bridge.bus_number is None:
                    last = numbers[bridge.index] = last + 1
                    last = number(bridge.index, last)
            return last

        number(0, 0)
        for root in self.bridges:
            if root.bus_number is not None:
                numbers[root.index] = root.bus_number
                number(root.index, root.bus_number)
        return numbers

    def guest_addresses(self) -> Mapping[HostDev, PCIAddress]:
        """Return the address of each device as the guest numbers its buses."""
        numbers = self.numbers()
        devices = (device for seat in self.seats for device in seat.hostdevs)
        return {device: replace(device.address, bus=numbers[device.address.bus]) for device in devices}


def layout(
    cards: tuple[GuestCard, ...],
    seats: Mapping[str, int] = MappingProxyType({}),
    upstream: Mapping[GuestCard, Upstream] = MappingProxyType({}),
    cells: tuple[Cell, ...] = (),
) -> Layout:
    """Give each card that is no USB device a seat; UserError if there are too few.

    `seats` pins entries by their names; all others, in order, have the lowest free seats. Each root bus has seats of
    its own, from 0. `upstream` has the cards that are not on bus 0, or are and should not be.
    """
    for claim in usb(cards):
        if claim.entry.name in seats:
            raise UserError(
                "metadata.annotations",
                f"{SEATS_OF}: {claim.entry} is a USB device, which has no seat",
                "leave it out there",
            )
    seated = with_seats(cards)
    if len(seated) > SEATS:
        along = len(seated) - len({card.claim.entry for card in seated})
        more = f" and bring {along} other cards of their IOMMU groups along" if along else ""
        raise UserError(
            "gpus and hostDevices",
            f"have {len(seated) - along} entries{more}",
            f"expected at most {SEATS} cards, for which a guest has seats",
        )
    on_seat_of = _joined(seated, seats)
    above = {card: upstream.get(on_seat_of.get(card, card), Upstream()) for card in seated}
    trunk = _root_ports(_seats([card for card in seated if above[card].on_bus_0], seats, on_seat_of), _FIRST_SLOT)
    expanders = _expanders(above, seats, cells, on_seat_of)
    bridges, buses = _indexed((*trunk, *expanders))
    return Layout(
        bridges=tuple(bridges),
        seats=tuple(
            Seat(
                claim=card.claim,
                bus=buses[card],
                hostdevs=tuple(
                    hostdevs_of(buses[card], [card, *(other for other in seated if on_seat_of.get(other) == card)])
                ),
                misplaced=above[card].misplaced,
            )
            for card in seated
            if card not in on_seat_of
        ),
        cells=cells,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Branch:
    """A bridge with everything behind it: further bridges, or a card, or nothing."""

    model: ControllerModel
    slot: int = 0
    function: int = 0
    below: tuple["_Branch", ...] = ()
    card: GuestCard | None = None
    bus_number: int | None = None
    cell: int | None = None

    @property
    def buses(self) -> int:
        return 1 + sum(branch.buses for branch in self.below)


def _joined(cards: tuple[GuestCard, ...], pinned: Mapping[str, int]) -> Mapping[GuestCard, GuestCard]:
    """Return the cards that share the seat of another card, with that other card. A pinned entry keeps its own seat."""
    first: dict[Claim, GuestCard] = {}
    for card in cards:
        first.setdefault(card.claim, card)
    return {card: first[card.joins] for card in cards if card.joins is not None and card.claim.entry.name not in pinned}


def _seats(
    cards: Iterable[GuestCard], pinned: Mapping[str, int], joined: Mapping[GuestCard, GuestCard]
) -> Mapping[int, GuestCard]:
    """Return the cards of one root bus by seat. The seats of those that have joined another stay free. A pin is for an
    entry's own card, and not for one that comes along."""
    taken: dict[int, GuestCard] = {}
    others: list[GuestCard] = []
    entries = set[str]()
    for card in cards:
        name = card.claim.entry.name
        if name in pinned and name not in entries:
            taken[pinned[name]] = card
        else:
            others.append(card)
        entries.add(name)
    free = (seat for seat in count() if seat not in taken)
    by_seat = taken | dict(zip(free, others, strict=False))
    return {seat: card for seat, card in by_seat.items() if card not in joined}


def _root_ports(cards: Mapping[int, GuestCard], first_slot: int = 0) -> tuple[_Branch, ...]:
    """Return a port for each seat up to the last taken one: without the idle ones, firmware would number the later ones
    anew."""
    return tuple(
        _Branch(
            model="pcie-root-port",
            slot=first_slot + seat // _PORTS_PER_SLOT,
            function=seat % _PORTS_PER_SLOT,
            card=cards.get(seat),
        )
        for seat in range(max(cards, default=-1) + 1)
    )


def _expanders(
    above: Mapping[GuestCard, Upstream],
    seats: Mapping[str, int],
    cells: tuple[Cell, ...],
    joined: Mapping[GuestCard, GuestCard],
) -> list[_Branch]:
    """Return the expanders in the order of cells or of the host's roots, with bus numbers from 255 downwards."""
    roots: dict[tuple[str, int], list[GuestCard]] = {}
    for card, upstream in above.items():
        if not upstream.on_bus_0:
            cell = -1 if upstream.cell is None else upstream.cell
            roots.setdefault((upstream.root or "", cell), []).append(card)
    expanders: list[_Branch] = []
    bus_number = _LAST_BUS + 1
    for number, ((root, cell), cards) in enumerate(sorted(roots.items(), key=itemgetter(0))):
        if root:
            ports = _mirrored([(above[card].bridges, card) for card in cards if card not in joined])
            bus_number -= 1 + sum(port.buses for port in ports)
        else:
            by_seat = _seats(cards, seats, joined)
            # Each cell has the same number of buses, so that a card of one moves no card of another.
            width = min(1 + SEATS, _BUSES_OF_EXPANDERS // len(cells))
            if (last := max(by_seat)) >= width - 1:
                raise UserError(
                    by_seat[last].claim.entry,
                    f"would have seat {last} in its NUMA cell, and with {len(cells)} cells there are bus numbers for "
                    f"{width - 1} seats in each",
                    f"expected lower seats in {SEATS_OF}, or fewer cards",
                )
            ports = _root_ports(by_seat)
            bus_number = _LAST_BUS + 1 - width * (cell + 1)
        slot, function = divmod(number, _PORTS_PER_SLOT)
        expanders.append(
            _Branch(
                model="pcie-expander-bus",
                slot=_FIRST_EXPANDER_SLOT + slot,
                function=function,
                below=ports,
                bus_number=bus_number,
                cell=None if cell < 0 else cell,
            )
        )
    needed = sum(expander.buses for expander in expanders)
    if needed > _BUSES_OF_EXPANDERS:
        raise UserError(
            "metadata.annotations",
            f"{TOPOLOGY}: the host's bridges above the cards would take {needed} bus numbers of the guest's, and "
            f"there is room for {_BUSES_OF_EXPANDERS}",
            "expected 'numa', or fewer cards",
        )
    return expanders


def _mirrored(cards: Iterable[tuple[tuple[PCIAddress, ...], GuestCard]]) -> tuple[_Branch, ...]:
    """Return the ports below an expander for cards that are behind these bridges on the host, in the host's order.

    A chain is a root port, and then an upstream and a downstream port for every switch. A chain of even length ends in
    a bridge to old PCI, which is not copied. The last port is each card's own: functions on one bus of the host
    (virtual ones, mediated devices) have slots of their own in the guest.
    """
    return _ports("pcie-root-port", [(bridges if len(bridges) % 2 else bridges[:-1], card) for bridges, card in cards])


def _ports(model: ControllerModel, chains: list[tuple[tuple[PCIAddress, ...], GuestCard]]) -> tuple[_Branch, ...]:
    """Return ports for the chains' first bridges: one for each switch behind them, by port and upstream port; and one
    for each card without another bridge above it."""
    switches: dict[tuple[PCIAddress, ...], list[tuple[tuple[PCIAddress, ...], GuestCard]]] = {}
    chained: list[tuple[tuple[PCIAddress, ...], tuple[_Branch, ...], GuestCard | None]] = []
    for chain, card in chains:
        if len(chain) > 1:
            switches.setdefault(chain[:2], []).append((chain[2:], card))
        else:
            chained.append((chain, (), card))
    for first, behind in switches.items():
        downstream = _ports("pcie-switch-downstream-port", behind)
        chained.append((first, (_Branch(model="pcie-switch-upstream-port", below=downstream),), None))
    ports = []
    for number, (_, below, seated) in enumerate(sorted(chained, key=itemgetter(0))):
        slot, function = divmod(number, _PORTS_PER_SLOT) if model == "pcie-root-port" else (number, 0)
        ports.append(_Branch(model=model, slot=slot, function=function, below=below, card=seated))
    return tuple(ports)


def _indexed(branches: tuple[_Branch, ...]) -> tuple[list[PCIBridge], dict[GuestCard, int]]:
    """Return the bridges with libvirt's indices, depth first; and the bus of each card."""
    bridges: list[PCIBridge] = []
    buses: dict[GuestCard, int] = {}

    def add(branch: _Branch, on: int) -> None:
        index = len(bridges) + 1
        slotted = branch.model in ("pcie-root-port", "pcie-switch-downstream-port")
        bridges.append(
            PCIBridge(
                model=branch.model,
                index=index,
                address=PCIAddress(domain=0, bus=on, slot=branch.slot, function=branch.function),
                chassis=index if slotted else None,
                port=branch.slot << 3 | branch.function if slotted else None,
                bus_number=branch.bus_number,
                cell=branch.cell,
            )
        )
        if branch.card is not None:
            buses[branch.card] = index
        for other in branch.below:
            add(other, index)

    for branch in branches:
        add(branch, 0)
    return bridges, buses


def hostdevs_of(bus: int, cards: list[GuestCard], slot: int = 0) -> list[HostDev]:
    """Place the functions of one card, which may belong to several entries, on a slot of this bus."""
    claim = cards[0].claim
    if isinstance(claim.device, UUID):
        return [HostDev(source=claim.device, address=PCIAddress(0, bus, slot, 0), claim=claim, multifunction=False)]
    claimed: dict[DeviceID, Claim] = {card.claim.device: card.claim for card in cards}
    functions = sorted(function for card in cards for function in card.functions)
    companions = functions[1:]
    numbers = [0, *(function.function for function in companions)]
    return [
        HostDev(
            source=source,
            address=PCIAddress(domain=0, bus=bus, slot=slot, function=number),
            claim=claimed.get(source),
            multifunction=number == 0 and bool(companions),
        )
        for source, number in zip(functions, numbers, strict=True)
    ]


def with_seats(cards: tuple[GuestCard, ...]) -> tuple[GuestCard, ...]:
    """Return all cards that are no USB devices, in order."""
    return tuple(card for card in cards if not isinstance(card.claim.device, USBAddress))


def usb(cards: tuple[GuestCard, ...]) -> tuple[Claim, ...]:
    """Return the claims of USB devices, in order."""
    return tuple(card.claim for card in cards if isinstance(card.claim.device, USBAddress))
