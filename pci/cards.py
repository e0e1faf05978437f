"""Which PCI functions are one card: the functions that travel together, from the host to a guest.

A graphics card is one slot with several functions: the GPU, its audio, sometimes USB and UCSI. A function's companions
are the other functions of its card.
"""

from collections.abc import Iterable
from typing import TypeAlias

from pci.address import PCIAddress
from pci.host import Function, Host

#: The functions of a card, ascending.
Card: TypeAlias = tuple[Function, ...]


def travels_alone(function: Function) -> bool:
    """Whether the function has no companions and is nobody's companion: a virtual function or a bridge.

    The guest gets it only by a request of its own, whichever dialect a plugin speaks.
    """
    return function.is_virtual or function.is_bridge


def listed_with(host: Host, address: PCIAddress) -> Card:
    """Return the functions that older device plugins list for this function's device, itself included: those of its
    slot in its IOMMU group, whether they travel together or not. A virtual function is a device of its own.

    Empty if the host has no such function, or could not read it.
    """
    function = host.functions.get(address)
    if function is None or function.is_virtual:
        return () if function is None else (function,)
    return tuple(
        other for other in host.slot(address) if other.iommu_group == function.iommu_group and not other.is_virtual
    )


def card_of(host: Host, address: PCIAddress) -> Card:
    """Return the functions that travel with this one, itself included; empty as for `listed_with`."""
    function = host.functions.get(address)
    if function is not None and travels_alone(function):
        return (function,)
    return tuple(other for other in listed_with(host, address) if not travels_alone(other))


def cards_of(host: Host, addresses: Iterable[PCIAddress] | None = None) -> tuple[Card, ...]:
    """Return the cards of these ascending functions, or of all that the host has: each once, ascending."""
    cards = (card_of(host, address) for address in (host.functions if addresses is None else addresses))
    return tuple({card[0].address: card for card in cards}.values())
