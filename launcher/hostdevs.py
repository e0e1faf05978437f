"""Whole cards: every claimed function with its companions, and with the other cards of its unit.

A companion of a claimed function travels with it (pci.cards), and is not claimed by another entry. All claims are made
before, so that no card takes a function that an entry asks for. If two entries claim functions of one card, each has
its own; the later one's are on the slot of the first.

A group of several cards may be offered as one unit (`groups: together` in gpu-plugin's config). The variable then has
the unit's first address alone, and the other cards come with the first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from launcher.claims import Claim, DeviceID, LeftOver
from pci.address import PCIAddress
from pci.cards import card_of, travels_alone
from pci.functions import is_grace_gpu, is_on_vfio, what
from pci.host import Function, Host, MediatedDevice
from program.errors import Refusal, together

#: Whether a claimed function brings the rest of its card (the annotation gpu-launcher.dev/companions).
Companions = Literal["card", "none"]


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a card may not be whole: what is `wrong` with a function. `where`: how this belongs to the claimed function;
    empty if it is that one."""

    function: PCIAddress
    wrong: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.function}{self.where} {self.wrong}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestCard:
    """Functions of one slot that the guest gets for a claim, ascending: the claimed one and its companions, or another
    card of the claimed one's unit.

    `functions`: empty for a mediated and for a USB device. `missing`: why the card may not be whole; None if it is.
    `joins`: an earlier claim of a function of the same card, the first, which has the slot in the guest; None if there
    is none.
    """

    claim: Claim
    functions: tuple[PCIAddress, ...]
    missing: Missing | None
    joins: Claim | None = None

    @property
    def device(self) -> DeviceID:
        """Return its first function; the device itself if it is no PCI function."""
        return self.functions[0] if self.functions else self.claim.device


def whole_cards(
    claims: tuple[Claim, ...],
    left_over: tuple[LeftOver, ...],
    host: Host | None,
    companions: Companions = "card",
) -> tuple[GuestCard, ...]:
    """Return a card for each claim, in order; then the other cards of their units, which so move no entry's card.

    A companion that two claims could have goes to the first. A plugin has named `left_over` devices as devices of their
    own, so these belong to no unit. With `companions` none, a card is its claimed function.
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


def refuse_grace(cards: Iterable[GuestCard], host: Host | None) -> None:
    """Raise a Refusal for each GPU of a Grace superchip: we do not make what its guest needs."""
    gpus = [(card, function) for card in cards for function in grace_gpus(card, host)]
    if gpus:
        errors = [
            Refusal(
                card.claim.entry,
                f"{what(gpu)} is the GPU of a Grace superchip ({gpu.pci_id}): its guest needs an SMMUv3 with ATS and "
                "NUMA nodes for the card's memory, which gpu-launcher does not make",
                "give the VM another card, or run it with KubeVirt and its gate GraceIOVirtualization",
            )
            for card, gpu in gpus
        ]
        raise together(errors)


def grace_gpus(card: GuestCard, host: Host | None) -> tuple[Function, ...]:
    """Return the card's functions that are GPUs of a Grace superchip, as far as sysfs shows them."""
    functions = [host.functions.get(address) for address in card.functions] if host is not None else []
    return tuple(function for function in functions if function is not None and is_grace_gpu(function))


def not_passed_on(left_over: tuple[LeftOver, ...], cards: tuple[GuestCard, ...]) -> tuple[LeftOver, ...]:
    """Return the devices that no entry asked for and no card brought along, as it does a resource's audio functions."""
    passed = {function for card in cards for function in card.functions}
    return tuple(
        replace(unasked, devices=devices)
        for unasked in left_over
        if (devices := tuple(device for device in unasked.devices if device not in passed))
    )


def function_of(device: DeviceID, host: Host | None) -> Function | None:
    """Return the host's function that a device is, or a mediated device's parent; None if sysfs does not show it."""
    mdev = mediated(device, host)
    address = mdev.parent if mdev is not None else device
    return host.functions.get(address) if host is not None and isinstance(address, PCIAddress) else None


def mediated(device: DeviceID, host: Host | None) -> MediatedDevice | None:
    return next((mdev for mdev in host.mdevs if mdev.uuid == device), None) if host is not None else None


def _first_of_cards(claims: tuple[Claim, ...], host: Host | None) -> Mapping[Claim, Claim]:
    """Return, by claim, the first claim with a function of the same card; a card's first claim itself is left out."""
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
    """Return the other cards of the unit whose first address is `claimed`; none if it is no unit.

    The group is a unit if all its endpoints are on vfio, if no plugin has named a function of another slot, and if
    `claimed` is the first of its kind: the plugin would have written the address of an earlier one.
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
        # Both are graphics, both audio, ...: the base class of PCI.
        or any(o.address < function.address and o.pci_class >> 16 == function.pci_class >> 16 for o in others)
    ):
        return ()
    cards = {
        card[0].address: card for other in others if not travels_alone(other) and (card := card_of(host, other.address))
    }
    return tuple(cards[first] for first in sorted(cards))


#: Why no card may be whole without a node's sysfs, in words that follow their addresses.
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
