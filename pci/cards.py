"""Which PCI functions are one card: the functions that travel together, from the host to a guest.

A graphics card is one slot with several functions: the GPU, its audio, sometimes USB and UCSI. A function's companions
are the others of its card. A function that must not travel with its slot's others is a rule of `travels_alone`.
"""

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
    """Return the functions that older device plugins list for the device that this one is of, itself included: those of
    its slot in its IOMMU group, whether they travel together or not. A virtual function is a device of its own.

    Empty if the host has no such function, or it could not be read.
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


def cards_of(host: Host) -> tuple[Card, ...]:
    """Return every card of the host once, ascending by its first function."""
    # The host's functions are ascending, so each card appears first by its first function.
    return tuple({card[0].address: card for card in (card_of(host, address) for address in host.functions)}.values())
