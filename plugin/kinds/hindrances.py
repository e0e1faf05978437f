"""Why cards cannot be bound to vfio, or given back: they are the node's own, in use, or share their group."""

from collections.abc import Container, Iterable
from typing import TypeAlias

from pci.address import PCIAddress
from pci.cards import Card, groups_of
from pci.functions import is_vfio_driver
from pci.host import Function, Host
from pci.vendors import NVIDIA
from pci.viability import NO_IOMMU, Hindrance, in_parts, is_boot_vga, no_iommu, shared_with
from plugin.cards.config import Config
from plugin.cards.rules import NOTHING, wanted_settings
from plugin.kinds.survey import Survey

#: Why cards cannot be bound, by the first function of each.
Reasons: TypeAlias = dict[PCIAddress, Hindrance]


def hindrance(survey: Survey, cards: Iterable[Card], config: Config) -> Hindrance | None:
    """Return why these cards cannot be bound to vfio together now, as the config wants it; None if they can."""
    if survey.unseen is not None:
        wrong = f"who uses it cannot be seen: {survey.unseen.subject} {survey.unseen.wrong}"
        return Hindrance(f"cannot be bound to vfio: {wrong}", survey.unseen.fix)
    _, own, refused = hindrances(survey, cards, config)
    every = own | refused
    if not every:
        return None
    first = every[min(every)]
    return Hindrance(f"cannot be bound to vfio: {first.wrong}", first.fix)


def hindrances(
    survey: Survey, cards: Iterable[Card], config: Config
) -> tuple[dict[PCIAddress, Card], Reasons, Reasons]:
    """Return three mappings by a card's first function: the cards that vfio does not wholly have; of all cards, why
    some are the node's own or share a group with one of these; and why other cards cannot be bound at the moment."""
    cards = tuple(cards)
    every = {card[0].address: card for card in cards}
    left = {card[0].address: card for card in cards if any(not is_vfio_driver(function.driver) for function in card)}
    own = {address: reason for address, card in left.items() if (reason := _own_reason(survey, card)) is not None}
    while True:
        taken = {function.address for address, card in every.items() if address not in own for function in card}
        strangers = {
            address: reason
            for address, card in every.items()
            if address not in own and (reason := _shared(survey.host, card, taken)) is not None
        }
        if not strangers:
            break
        own |= strangers  # so a card in one of their groups has one more stranger
    refused = {
        address: reason
        for address, card in left.items()
        if address not in own
        and (reason := _passing_reason(survey, card) or _unsettable(survey, card, config)) is not None
    }
    return left, own, refused


def others_on_bus(host: Host, function: Function) -> list[str]:
    """Return the other functions on a function's bus. If there are any, the kernel has no reset method `bus` for the
    function (pci_parent_bus_reset in drivers/pci/pci.c)."""
    at = function.address
    return [str(other) for other in host.functions if (other.domain, other.bus) == (at.domain, at.bus) and other != at]


def _unsettable(survey: Survey, card: Card, config: Config) -> Hindrance | None:
    """Return why the card cannot get the reset that its rule wants; None if it can."""
    wanted = wanted_settings(survey.host, card, config)
    for function in _not_on_vfio(card):
        methods = wanted.get(function.address, NOTHING).reset_methods
        it = _it(function.address, card)
        if methods and survey.details[function.address].reset_methods is None:
            wrong = f"{it} has no reset of its own to choose by reset_method"
            return Hindrance(wrong, "take reset_method out of its rule, or boot Linux 5.15 or newer")
        if methods and "bus" in methods and (others := others_on_bus(survey.host, function)):
            wrong = (
                f"{it} shares its bus with {', '.join(others)}, so that the kernel has no reset_method bus for it alone"
            )
            return Hindrance(wrong, "reset_method: [] has VFIO reset the bus with the whole card")
    return None


def _own_reason(survey: Survey, card: Card) -> Hindrance | None:
    """Return why the card is the node's own, serves guests through its driver, or could not be given back to its driver
    later; None otherwise."""
    if card[0].is_bridge:
        return Hindrance("it is a PCI bridge, which no guest can be given", "name the devices behind it")
    for function in card:
        details = survey.details[function.address]
        it = _it(function.address, card)
        if (parts := in_parts(survey.host, function, made=details.virtual_functions or 0)) is not None:
            return Hindrance(f"{it} {parts.wrong}", parts.fix)
        if function.boot_vga and not is_vfio_driver(function.driver):
            screen = is_boot_vga(survey.host, function)
            return Hindrance(f"{it} {screen.wrong}", screen.fix)
        if function.is_virtual and function.vendor_id == NVIDIA and function.driver == "nvidia":
            return Hindrance(
                f"{it} is a virtual function of NVIDIA's driver, which gives it to guests as a vGPU",
                "leave it on that driver: it is offered by its type",
            )
    if (reason := former_drivers_unknown(survey)) is not None:
        return reason
    return in_use(survey, card, _not_on_vfio(card), passing=False)


def _shared(host: Host, card: Card, taken: Container[PCIAddress]) -> Hindrance | None:
    """Return who keeps the card's IOMMU group from guests even with the functions `taken` bound, if anybody."""
    shared = shared_with(host, card, taken)
    return None if shared is None else Hindrance(f"it {shared.wrong}", shared.fix)


def _passing_reason(survey: Survey, card: Card) -> Hindrance | None:
    """Return a passing reason why the card cannot be bound at the moment; None if it can."""
    host = survey.host
    for function in card:
        if function.iommu_group is None or function.iommu_group in host.noiommu:
            reason = no_iommu(host) if function.iommu_group is None else NO_IOMMU
            return Hindrance(f"{_it(function.address, card)} {reason.wrong}", reason.fix)
    for group in groups_of(card):
        unreadable = [str(address) for address in host.groups[group] if address not in host.functions]
        if unreadable:
            return Hindrance(
                f"its IOMMU group {group} has {', '.join(unreadable)}, which cannot be read",
                "the kernel's log may say what became of it",
            )
    for function in _not_on_vfio(card):
        if survey.vfio_driver(function) is None:
            module = survey.modules[function.address].replace("_", "-")
            return Hindrance(f"its driver {module} is not loaded", f"modprobe {module}")
    return in_use(survey, card, _not_on_vfio(card), passing=True)


def in_use(survey: Survey, card: Card, functions: Iterable[Function], *, passing: bool) -> Hindrance | None:
    """Return the uses of these functions of the card: with `passing` by processes, else by the node itself, a pod or a
    claim; None if there are none."""
    uses: dict[str, PCIAddress] = {}
    is_certain = False
    for function in sorted(functions, key=lambda function: function.address):
        for use in survey.uses[function.address]:
            if use.passing is passing:
                uses.setdefault(use.what, function.address)  # a group is open for all its functions
                is_certain |= use.is_certain
    if not uses:
        return None
    users = (
        f"{_it(address, card)} is in use: {', '.join(what for what in uses if uses[what] == address)}"
        for address in dict.fromkeys(uses.values())
    )
    return Hindrance(", and ".join(users), "end that first" if is_certain else "wait until that has ended")


def former_drivers_unknown(survey: Survey) -> Hindrance | None:
    """Return why no former driver can be read or remembered; None if they can."""
    if (trouble := survey.journal_trouble) is None:
        return None
    return Hindrance(f"its former driver cannot be remembered: {trouble.subject} {trouble.wrong}", trouble.fix)


def former_driver_gone(survey: Survey, card: Card, functions: Iterable[Function]) -> Hindrance | None:
    """Return which former driver of these functions is not loaded; None if each is, or is not remembered."""
    for function in functions:
        former = survey.former_binding(function)
        if former is not None and former.driver is not None and former.driver not in survey.drivers:
            it = _it(function.address, card)
            return Hindrance(f"{it} was on {former.driver}, which is not loaded", f"modprobe {former.driver}")
    return None


def _it(address: PCIAddress, card: Card) -> str:
    """Return the word for a function after the name of its card."""
    return "it" if address == card[0].address else str(address)


def _not_on_vfio(card: Iterable[Function]) -> list[Function]:
    return [function for function in card if not is_vfio_driver(function.driver)]
