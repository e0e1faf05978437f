"""Which PCI functions are one card: the functions that travel together, from the host to a guest.

A graphics card is one slot with several functions: the GPU, its audio, sometimes USB and UCSI. A function's companions
are the other functions of its card.

Where the kernel isolates functions of a GPU's slot from each other, each has an IOMMU group of its own. The card is
then in several parts, each the functions of one slot in one group. The functions of the GPU's vendor are the card's.
Others only share its slot: a Ryzen has its GPU and the GPU's audio (vendor 1002) in one slot with the processor's
cryptography, USB and sound (vendor 1022). Audio may also be on another downstream port of the board's own switch, as on
Intel's Arc.
"""

from collections.abc import Iterable
from typing import TypeAlias

from pci.address import PCIAddress
from pci.functions import is_audio, is_gpu
from pci.host import Function, Host

#: The functions of a card, ascending; those outside the slot or the IOMMU group of its GPU come last.
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


def part_of(host: Host, address: PCIAddress) -> Card:
    """Return the part of a card that this function is in, ascending: the functions of its slot in its IOMMU group that
    travel with it. Empty as for `listed_with`."""
    function = host.functions.get(address)
    if function is not None and travels_alone(function):
        return (function,)
    return tuple(other for other in listed_with(host, address) if not travels_alone(other))


def card_of(host: Host, address: PCIAddress) -> Card:
    """Return the functions that travel with this one, itself included; empty as for `listed_with`."""
    part = part_of(host, address)
    gpus = _gpus_part(host, part)
    if not gpus:
        return part
    near = (*host.slot(gpus[0].address), *host.beside(gpus[0]))
    others = sorted(other.address for other in near if other not in gpus and not travels_alone(other))
    return (*gpus, *(host.functions[other] for other in others if _gpus_part(host, part_of(host, other)) == gpus))


def cards_of(host: Host, addresses: Iterable[PCIAddress] | None = None) -> tuple[Card, ...]:
    """Return the cards of these functions, or of all that the host has: each once, ascending."""
    cards = (card_of(host, address) for address in (host.functions if addresses is None else addresses))
    by_first = {card[0].address: card for card in cards}
    return tuple(by_first[first] for first in sorted(by_first))


def groups_of(functions: Iterable[Function]) -> tuple[int, ...]:
    """Return the IOMMU groups of these functions, each once, in the order of the functions."""
    return tuple(dict.fromkeys(each.iommu_group for each in functions if each.iommu_group is not None))


def _gpus_part(host: Host, part: Card) -> Card:
    """Return the part with the GPU of the card that this part belongs to; empty if it belongs to no GPU's card."""
    if not part or travels_alone(part[0]):
        return ()
    if any(map(is_gpu, part)):
        return part
    parts = _parts_with_gpus(host, host.slot(part[0].address))
    if not parts and all(map(is_audio, part)):
        behind_switch = _parts_with_gpus(host, host.beside(part[0]))
        parts = behind_switch if len(behind_switch) == 1 else ()
    vendors = {function.vendor_id for function in part}
    return next((gpus for gpus in parts if vendors == {next(filter(is_gpu, gpus)).vendor_id}), ())


def _parts_with_gpus(host: Host, functions: Iterable[Function]) -> tuple[Card, ...]:
    gpus = (function for function in functions if is_gpu(function) and not travels_alone(function))
    return tuple(dict.fromkeys(part_of(host, gpu.address) for gpu in gpus))
