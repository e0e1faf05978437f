"""Whole cards: every claimed function with its companions.

A graphics card is several functions of one slot: the GPU, its audio, perhaps USB and UCSI. They belong together and
share an IOMMU group, so the guest gets them together. A companion of a claimed function is on the same slot, in the
same group, neither a virtual function nor a bridge, and not claimed by another entry. All claims are made before, so
that no companion is taken that an entry asks for.
"""

from dataclasses import dataclass
from uuid import UUID

from launcher.claims import Claim
from pci.address import PCIAddress
from pci.sysfs import Host


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A claim, and all the functions that the guest gets for it: ascending, the claimed one among them.

    `functions` is empty for a mediated device. `in_sysfs` is False where the host is not known or does not have the
    address, so that companions could not be looked for.
    """

    claim: Claim
    functions: tuple[PCIAddress, ...]
    in_sysfs: bool


def whole_cards(claims: tuple[Claim, ...], host: Host | None) -> tuple[Card, ...]:
    """A card for each claim, in order. A companion that two claims could have goes to the first."""
    taken = {claim.device for claim in claims}
    cards = []
    for claim in claims:
        if isinstance(claim.device, UUID):
            cards.append(Card(claim=claim, functions=(), in_sysfs=True))
            continue
        found = host.card(claim.device) if host is not None else ()
        companions = [function.address for function in found if function.address not in taken]
        taken.update(companions)
        functions = tuple(sorted([claim.device, *companions]))
        cards.append(Card(claim=claim, functions=functions, in_sysfs=bool(found)))
    return tuple(cards)
