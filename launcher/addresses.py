"""Seats: where each card sits on the guest's PCI Express, layout version 1.

A guest remembers its devices by address (Windows, udev, CUDA's order), so the addresses are ours and not libvirt's.
Every card has a seat: a root port of its own, at an address that depends on the card's place in the manifest and on
nothing else. The ports come first on bus 0, eight functions to a slot from 00:01.0 on, because firmware numbers the
buses behind them depth first in slot order: whatever else the VM has comes after them and moves no card.

A card that comes along with another (launcher.hostdevs) sits behind all entries' cards, so that it moves none of them.
A USB device has no seat: it hangs on the guest's USB controller, at the port that libvirt gives it.

On a seat the card's functions keep their numbers on slot 0. Where host function 0 is not passed on, the lowest that is
becomes function 0: without one, a guest finds none of the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal
from uuid import UUID

from launcher.claims import Claim
from launcher.errors import UserError
from launcher.hostdevs import Card
from pci.address import PCIAddress
from pci.resource import USBAddress

SEATS = 32
_FIRST_SLOT = 1  # the first after the host bridge: libvirt puts its own ports into the first slot that is free
_PORTS_PER_SLOT = 8
#: Where the emulated screen is: the first slot after all seats, whether they are taken or not. On bus 0, since firmware
#: takes the first VGA that it need not open a bridge for, and a passed-through card is behind one.
SCREEN = PCIAddress(domain=0, bus=0, slot=_FIRST_SLOT + SEATS // _PORTS_PER_SLOT, function=0)

Model = Literal["pcie-expander-bus", "pcie-root-port", "pcie-switch-upstream-port", "pcie-switch-downstream-port"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDev:
    """One <hostdev>: what of the host (`source`) goes where in the guest (`address`).

    `address.bus` is the index of the controller that provides the bus, as libvirt counts. `claim` is None for a
    companion: only what the manifest names has a name.
    """

    source: PCIAddress | UUID
    address: PCIAddress
    claim: Claim | None
    multifunction: bool

    @property
    def alias(self) -> str | None:
        return self.claim.alias if self.claim is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge:
    """A PCI controller of the guest's: at `address` itself, it provides the bus `index`, as libvirt counts.

    `chassis` and `port` are the physical slot that a guest shows, of a root port and of a switch's downstream port. A
    pcie-expander-bus has `bus_number` (libvirt's busNr: the number that the guest knows its bus by), and the guest's
    NUMA cell that it is in, None for none.
    """

    model: Model
    index: int
    address: PCIAddress
    chassis: int | None = None
    port: int | None = None
    bus_number: int | None = None
    cell: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """The place of a card: slot 0 of bus `bus`, and the functions of the card there.

    `claim` is what the card came for: its own, or that of a card that brought it along.
    """

    claim: Claim
    bus: int
    hostdevs: tuple[HostDev, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The guest's PCI Express as far as it is ours: the bridges, by index, and the seats, in the order of the cards."""

    bridges: tuple[Bridge, ...] = ()
    seats: tuple[Seat, ...] = ()

    def numbers(self) -> Mapping[int, int]:
        """By libvirt's index, the number that firmware gives each bus: depth first, in the order of slots.

        Those behind bus 0 from 1 on; those behind an expander from its bus_number on.
        """
        below: dict[int, list[Bridge]] = {}
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

    def seen(self) -> Mapping[HostDev, PCIAddress]:
        """The address of each device as the guest has it."""
        numbers = self.numbers()
        devices = (device for seat in self.seats for device in seat.hostdevs)
        return {device: replace(device.address, bus=numbers[device.address.bus]) for device in devices}


def layout(cards: tuple[Card, ...]) -> Layout:
    """A seat for each card that is not USB's, in order; UserError for more than there are."""
    seated = [card for card in cards if not isinstance(card.claim.device, USBAddress)]
    if len(seated) > SEATS:
        along = len(seated) - len({card.claim.entry for card in seated})
        more = f" and bring {along} other cards of their IOMMU groups along" if along else ""
        raise UserError(f"gpus and hostDevices have {len(seated) - along} entries{more}; a guest has seats for {SEATS}")
    return Layout(
        bridges=tuple(_root_port(number) for number in range(len(seated))),
        seats=tuple(
            Seat(claim=card.claim, bus=bus, hostdevs=tuple(_hostdevs(bus, card)))
            for bus, card in enumerate(seated, start=1)
        ),
    )


def _root_port(seat: int) -> Bridge:
    slot, function = divmod(seat, _PORTS_PER_SLOT)
    address = PCIAddress(domain=0, bus=0, slot=_FIRST_SLOT + slot, function=function)
    return Bridge(
        model="pcie-root-port",
        index=seat + 1,
        address=address,
        chassis=seat + 1,
        port=address.slot << 3 | address.function,
    )


def _hostdevs(bus: int, card: Card) -> list[HostDev]:
    claim = card.claim
    if isinstance(claim.device, UUID):
        return [HostDev(source=claim.device, address=PCIAddress(0, bus, 0, 0), claim=claim, multifunction=False)]
    companions = card.functions[1:]
    numbers = [0, *(function.function for function in companions)]
    return [
        HostDev(
            source=source,
            address=PCIAddress(domain=0, bus=bus, slot=0, function=number),
            claim=claim if source == claim.device else None,
            multifunction=number == 0 and bool(companions),
        )
        for source, number in zip(card.functions, numbers, strict=True)
    ]


def usb(cards: tuple[Card, ...]) -> tuple[Claim, ...]:
    """The claims that are USB devices, in order."""
    return tuple(card.claim for card in cards if isinstance(card.claim.device, USBAddress))
