"""Whole cards: every claimed function with its companions, and with the other cards of its unit.

A graphics card is several functions of one slot: the GPU, its audio, perhaps USB and UCSI. They belong together and
share an IOMMU group, so the guest gets them together. A companion of a claimed function is on the same slot, in the
same group, neither a virtual function nor a bridge, and not claimed by another entry. All claims are made before, so
that no companion is taken that an entry asks for.

Where two entries claim functions of one card, each has its own; the later one's are on the slot of the first.

A group of several cards may be offered as one unit (`groups: together` in gpu-plugin's config); its value then has the
unit's first address alone, and its other cards come with the first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from launcher.claims import Claim, DeviceID, LeftOver
from pci.address import PCIAddress
from pci.cards import card_of, travels_alone
from pci.functions import is_on_vfio
from pci.host import Function, Host, MediatedDevice

#: Whether a claimed function brings the rest of its card (the annotation gpu-launcher.dev/companions).
Companions = Literal["card", "none"]


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a card may not be whole: what is `wrong` with a function. It is the claimed one unless `where` says how it
    belongs to that."""

    function: PCIAddress
    wrong: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.function}{self.where} {self.wrong}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestCard:
    """Functions of one slot that the guest gets for a claim, ascending: the claimed one and its companions, or another
    card of the claimed one's unit.

    `functions` is empty for a mediated and for a USB device. `missing` says why the card may not be whole: its
    companions were not looked for, not found, or not readable. None if it is whole.
    `joins`: the first claim of a function of the same card, on whose slot in the guest these functions are; None if
    there is none before.
    """

    claim: Claim
    functions: tuple[PCIAddress, ...]
    missing: Missing | None
    joins: Claim | None = None

    @property
    def device(self) -> DeviceID:
        """Its first function; or what it is, where that is none."""
        return self.functions[0] if self.functions else self.claim.device


def whole_cards(
    claims: tuple[Claim, ...],
    left_over: tuple[LeftOver, ...],
    host: Host | None,
    companions: Companions = "card",
) -> tuple[GuestCard, ...]:
    """A card for each claim, in order; then the other cards of their units, so that those move no entry's card.

    A companion that two claims could have goes to the first. What is left over of the variables was named by a plugin
    as a device of its own, and so belongs to nobody's unit. With `companions` none, a card is its claimed function.
    """
    named: set[DeviceID] = {each.device for each in claims}
    taken = set(named)
    first = _first_of_cards(claims, host)
    cards = [replace(_card(each, host, companions, taken), joins=first.get(each)) for each in claims]
    if host is None or companions == "none":
        return tuple(cards)
    named.update(device for unasked in left_over for device in unasked.devices)
    for claim in claims:
        for functions in _rest_of_unit(claim.device, host, named):
            addresses = tuple(function.address for function in functions)
            cards.append(GuestCard(claim=claim, functions=addresses, missing=None))
            named.update(addresses)  # another entry may have a function of the unit's first card
    return tuple(cards)


def not_passed_on(left_over: tuple[LeftOver, ...], cards: tuple[GuestCard, ...]) -> tuple[LeftOver, ...]:
    """What no entry asked for and no card brought along: a resource of its own for audio functions leaves none over."""
    passed = {function for card in cards for function in card.functions}
    return tuple(
        replace(unasked, devices=devices)
        for unasked in left_over
        if (devices := tuple(device for device in unasked.devices if device not in passed))
    )


def function_of(device: DeviceID, host: Host | None) -> Function | None:
    """The host's function that a device is, or, of a mediated device, that it is a part of; None where sysfs does not
    show it."""
    mdev = mediated(device, host)
    address = mdev.parent if mdev is not None else device
    return host.functions.get(address) if host is not None and isinstance(address, PCIAddress) else None


def mediated(device: DeviceID, host: Host | None) -> MediatedDevice | None:
    return next((mdev for mdev in host.mdevs if mdev.uuid == device), None) if host is not None else None


def _first_of_cards(claims: tuple[Claim, ...], host: Host | None) -> Mapping[Claim, Claim]:
    """By each claim whose function is of a card that an earlier one has a function of, the first of those."""
    if host is None:
        return {}
    first: dict[PCIAddress, Claim] = {}
    joining: dict[Claim, Claim] = {}
    for claim in claims:
        if isinstance(claim.device, PCIAddress) and (card := card_of(host, claim.device)):
            earlier = first.setdefault(card[0].address, claim)
            if earlier is not claim:
                joining[claim] = earlier
    return joining


def _card(claim: Claim, host: Host | None, companions: Companions, taken: set[DeviceID]) -> GuestCard:
    device = claim.device
    if not isinstance(device, PCIAddress):
        return GuestCard(claim=claim, functions=(), missing=None)
    if companions == "none":
        return GuestCard(claim=claim, functions=(device,), missing=None)
    functions = card_of(host, device) if host is not None else ()
    others = [function.address for function in functions if function.address not in taken]
    taken.update(others)
    return GuestCard(claim=claim, functions=tuple(sorted([device, *others])), missing=_missing(device, host))


def _rest_of_unit(claimed: DeviceID, host: Host, named: set[DeviceID]) -> Iterable[tuple[Function, ...]]:
    """The other cards of the unit whose first address is `claimed`; none where it is no unit.

    It is one where all endpoints of the group are on vfio, none of another slot has a name of its own, and none of its
    kind is before it: the plugin would have written that one's address.
    """
    function = host.functions.get(claimed) if isinstance(claimed, PCIAddress) else None
    if function is None or function.is_virtual or function.iommu_group is None:
        return ()
    members = [host.functions.get(address) for address in host.groups[function.iommu_group]]
    endpoints = [member for member in members if member is not None and not member.is_bridge]
    others = [member for member in endpoints if not member.address.shares_slot(function.address)]
    if (
        None in members
        or not all(map(is_on_vfio, endpoints))
        or any(other.address in named for other in others)
        or any(other.address < function.address and _alike(other, function) for other in others)
    ):
        return ()
    cards = {
        card[0].address: card for other in others if not travels_alone(other) and (card := card_of(host, other.address))
    }
    return tuple(cards[first] for first in sorted(cards))


def _alike(one: Function, other: Function) -> bool:
    """Whether both are graphics, both audio, ...: the base class of PCI."""
    return one.pci_class >> 16 == other.pci_class >> 16


#: Why no card may be whole, where nothing is known of the node; goes after their addresses.
NONE_LOOKED_UP = "were not looked up: there is no --sysfs"


def _missing(claimed: PCIAddress, host: Host | None) -> Missing | None:
    if host is None:
        return Missing(claimed, "was not looked up: there is no --sysfs")
    function = host.functions.get(claimed)
    if function is None:
        return Missing(claimed, "is not in sysfs")
    if function.is_virtual or function.iommu_group is None:
        return None
    for member in host.groups[function.iommu_group]:
        if member not in host.functions:
            where = ", on its slot and in its group," if member.shares_slot(claimed) else ", in its group,"
            return Missing(member, "cannot be read in sysfs", where)
    return None
