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

from dataclasses import dataclass
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
class Seat:
    """A root port at `port` on bus 0, which provides bus `bus`, and the functions of the card behind it.

    `claim` is what the card came for: its own, or that of a card that brought it along.
    """

    claim: Claim

    port: PCIAddress
    bus: int
    hostdevs: tuple[HostDev, ...]


def seat(cards: tuple[Card, ...]) -> tuple[Seat, ...]:
    """A seat for each card that is not USB's, in order; UserError for more than there are."""
    seated = [card for card in cards if not isinstance(card.claim.device, USBAddress)]
    if len(seated) > SEATS:
        along = len(seated) - len({card.claim.entry for card in seated})
        more = f" and bring {along} other cards of their IOMMU groups along" if along else ""
        raise UserError(f"gpus and hostDevices have {len(seated) - along} entries{more}; a guest has seats for {SEATS}")
    return tuple(_seat(number, card) for number, card in enumerate(seated))


def _seat(number: int, card: Card) -> Seat:
    slot, function = divmod(number, _PORTS_PER_SLOT)
    bus = number + 1
    return Seat(
        claim=card.claim,
        port=PCIAddress(domain=0, bus=0, slot=_FIRST_SLOT + slot, function=function),
        bus=bus,
        hostdevs=tuple(_hostdevs(bus, card)),
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
