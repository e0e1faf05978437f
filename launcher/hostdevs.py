"""Whole cards: every claimed function with its companions.

A graphics card is several functions of one slot: the GPU, its audio, perhaps USB and UCSI. They belong together and
share an IOMMU group, so the guest gets them together. A companion of a claimed function is on the same slot, in the
same group, neither a virtual function nor a bridge, and not claimed by another entry. All claims are made before, so
that no companion is taken that an entry asks for.
"""

from dataclasses import dataclass, replace
from uuid import UUID

from launcher.claims import Claim, LeftOver
from pci.address import PCIAddress
from pci.sysfs import Host


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A claim, and all the functions that the guest gets for it: ascending, the claimed one among them.

    `functions` is empty for a mediated device. `missing` says, in words that follow "gpu 'gpu1': ", why the card may
    not be whole: its companions were not looked for, not found, or not readable. None where it is whole.
    """

    claim: Claim
    functions: tuple[PCIAddress, ...]
    missing: str | None


def whole_cards(claims: tuple[Claim, ...], host: Host | None) -> tuple[Card, ...]:
    """A card for each claim, in order. A companion that two claims could have goes to the first."""
    taken = {claim.device for claim in claims}
    cards = []
    for claim in claims:
        if isinstance(claim.device, UUID):
            cards.append(Card(claim=claim, functions=(), missing=None))
            continue
        found = host.card(claim.device) if host is not None else ()
        companions = [function.address for function in found if function.address not in taken]
        taken.update(companions)
        functions = tuple(sorted([claim.device, *companions]))
        cards.append(Card(claim=claim, functions=functions, missing=_missing(claim.device, host)))
    return tuple(cards)


def not_passed_on(left_over: tuple[LeftOver, ...], cards: tuple[Card, ...]) -> tuple[LeftOver, ...]:
    """What no entry asked for and no card brought along: a resource of its own for audio functions leaves none over."""
    passed = {function for card in cards for function in card.functions}
    return tuple(
        replace(unasked, devices=devices)
        for unasked in left_over
        if (devices := tuple(device for device in unasked.devices if device not in passed))
    )


def _missing(claimed: PCIAddress, host: Host | None) -> str | None:
    if host is None:
        return f"{claimed} was not looked up: there is no --sysfs"
    function = host.functions.get(claimed)
    if function is None:
        return f"{claimed} is not in sysfs"
    if function.is_virtual or function.iommu_group is None:
        return None
    for member in host.groups[function.iommu_group]:
        if member.shares_slot(claimed) and member not in host.functions:
            return f"{member}, on its slot and in its group, cannot be read in sysfs"
    return None
