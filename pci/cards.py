"""Which PCI functions are one card: the functions that travel together, from the host to a guest.

A graphics card is one slot with several functions: the GPU, its audio, sometimes USB and UCSI. A function's companions
are the others of its card. A device whose functions must not travel together is a rule of `travels_alone`.
"""

from typing import TypeAlias

from pci.address import PCIAddress
from pci.host import Function, Host

#: The functions of a card, ascending.
Card: TypeAlias = tuple[Function, ...]


def travels_alone(function: Function) -> bool:
    """Whether the function has no companions and is nobody's: a virtual function or a bridge."""
    return function.is_virtual or function.is_bridge


def card_of(host: Host, address: PCIAddress) -> Card:
    """Return the functions that travel with this one, itself included: those of its slot in its IOMMU group.

    Empty if the host has no such function, or it could not be read.
    """
    function = host.functions.get(address)
    if function is None:
        return ()
    if travels_alone(function):
        return (function,)
    return tuple(
        other for other in host.slot(address) if other.iommu_group == function.iommu_group and not travels_alone(other)
    )


def cards_of(host: Host) -> tuple[Card, ...]:
    """Return every card of the host once, ascending by its first function."""
    # The host's functions are ascending, so each card appears first by its first function.
    return tuple({card[0].address: card for card in (card_of(host, address) for address in host.functions)}.values())
