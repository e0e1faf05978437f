"""Which writes to sysfs give whole cards to vfio, and give them back: decided before the first one, or refused.

By `driver_override` alone (kernel Documentation/ABI/testing/sysfs-bus-pci), which is about one function; `new_id` is
about every function with that ID, those that are plugged in later too. A function's override is written before its
driver is unbound: from then on no other driver that is being loaded can take it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pci.address import PCIAddress
from pci.cards import Card, card_of, cards_of
from pci.functions import is_gpu, is_vfio_driver
from pci.host import Details, Function, Host
from pci.sysfs.functions import DEVICES
from pci.vendors import NVIDIA, PREFIXES
from pci.viability import PLACEHOLDERS, keeps_its_group
from plugin.binding.uses import Use
from plugin.config import Config
from plugin.errors import Refusal
from plugin.inventory import fitting

_PROBE = "bus/pci/drivers_probe"


@dataclass(frozen=True, slots=True)
class Binding:
    """Which driver has a function, and the one that alone may take it (`driver_override`); None where there is none."""

    driver: str | None
    override: str | None

    @property
    def is_vfio(self) -> bool:
        """Whether vfio has the function, or nobody else may: a bind that was cut off leaves the override."""
        return _is_vfio(self.driver) or _is_vfio(self.override)


@dataclass(frozen=True, slots=True)
class Write:
    """One line, `text`, written to the file `path` below /sys; as a string, what does so in a shell."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"echo {self.text} > /sys/{self.path}" if self.text else f"echo > /sys/{self.path}"


@dataclass(frozen=True, slots=True)
class Former:
    """What a function had before it was bound to vfio. `pci_id` tells it from another card in the same slot."""

    pci_id: str
    binding: Binding


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One function on its way from one driver to another. `wanted` is None where the kernel is to choose. `former` is
    what to remember while vfio has it; None when it comes back."""

    address: PCIAddress
    now: Binding
    wanted: Binding | None
    former: Former | None

    @property
    def writes(self) -> tuple[Write, ...]:
        return writes(self.address, self.now, self.wanted)


@dataclass(frozen=True, slots=True)
class Plan:
    """The moves, in order, and why which cards are left as they are, a line each."""

    moves: tuple[Move, ...]
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a plan is made from. Of every function of the cards that it is about: `details`, `uses`, and in `modules`
    the name of the vfio driver's module for it. `drivers` are those of the PCI bus. `former` is what is remembered.
    `unseen` says why some uses may be missing; None where none are."""

    host: Host
    details: Mapping[PCIAddress, Details]
    uses: Mapping[PCIAddress, tuple[Use, ...]]
    modules: Mapping[PCIAddress, str]
    drivers: frozenset[str]
    former: Mapping[PCIAddress, Former]
    unseen: str | None

    def binding(self, function: Function) -> Binding:
        return Binding(function.driver, self.details[function.address].driver_override)


def named_cards(host: Host, addresses: Iterable[PCIAddress]) -> tuple[Card, ...]:
    """The cards that these functions belong to, each once, ascending; Refusal for an address that is not there."""
    addresses = sorted(set(addresses))
    for address in addresses:
        if address not in host.functions:
            faults = "".join(f"; {fault}" for fault in host.faults if str(address) in fault.path)
            raise Refusal(f"{address}: this node has no such PCI function{faults}; lspci -D lists what it has")
    return tuple({card[0].address: card for card in (card_of(host, address) for address in addresses)}.values())


def offered_cards(host: Host, config: Config) -> tuple[Card, ...]:
    """The cards that would be offered if vfio had them: every NVIDIA, AMD and Intel GPU, and what the config fits."""
    return tuple(card for card in cards_of(host) if _is_offered(host, card, config))


def _is_offered(host: Host, card: Card, config: Config) -> bool:
    if (found := fitting(host, card, config)) is not None:
        return not found[0].withhold
    return any(is_gpu(function) and function.vendor_id in PREFIXES for function in card)


def plan_bind(seen: Seen, cards: Iterable[Card], *, skip: bool) -> Plan:
    """Bind these cards to vfio, every function; nothing to do for what vfio has.

    Refusal, naming every card that cannot be bound with its reason. With `skip` the node's own are left alone instead
    (its console, its disk, what shares a group with those): they are no news. What could be bound once somebody lets
    go of it, or a module is loaded, is a Refusal still.
    """
    left = {card[0].address: card for card in cards if any(not _is_vfio(function.driver) for function in card)}
    own: dict[PCIAddress, str] = {}
    for address, card in left.items():
        if (reason := _own_reason(seen, card)) is not None:
            own[address] = reason
    while True:
        taken = {function.address for address, card in left.items() if address not in own for function in card}
        strangers = {
            address: reason
            for address, card in left.items()
            if address not in own and (reason := _strangers(seen.host, card, taken)) is not None
        }
        if not strangers:
            break
        own |= strangers  # whoever shares a group with one of them has a stranger more
    refused = {
        address: reason
        for address, card in left.items()
        if address not in own and (reason := _passing_reason(seen, card)) is not None
    }
    if not skip:
        refused |= own
    if refused:
        raise _refusal("bind", refused)
    moves = (
        _to_vfio(seen, function)
        for address, card in sorted(left.items())
        if address not in own
        for function in _in_order(card)
        if not _is_vfio(function.driver)
    )
    return Plan(tuple(moves), tuple(f"{address}: {own[address]}" for address in sorted(own)))


def plan_unbind(seen: Seen, cards: Iterable[Card]) -> Plan:
    """Give back what vfio has of these cards to the drivers they had before; unremembered ones to whom the kernel
    chooses. Refusal where a guest has one, or its driver is not loaded any more."""
    moves: list[Move] = []
    refused: dict[PCIAddress, str] = {}
    for card in sorted(cards, key=lambda card: card[0].address):
        bound = [function for function in _in_order(card) if seen.binding(function).is_vfio]
        bound.reverse()
        reason = _in_use(seen, card, bound, passing=True) or _driver_gone(seen, card, bound)
        if reason is not None:
            refused[card[0].address] = reason
        moves += [_from_vfio(seen, function) for function in bound]
    if refused:
        raise _refusal("unbind", refused)
    return Plan(tuple(moves))


def writes(address: PCIAddress, now: Binding, wanted: Binding | None) -> tuple[Write, ...]:
    """What takes a function from one binding to another, or to the kernel's choice; nothing where it is there."""
    function = f"{DEVICES}/{address}"
    unbind = (Write(f"{function}/driver/unbind", str(address)),) if now.driver is not None else ()
    probe = Write(_PROBE, str(address))

    def override(before: str | None, after: str | None) -> tuple[Write, ...]:
        return (Write(f"{function}/driver_override", after or ""),) if before != after else ()

    if wanted is None:
        return (*override(now.override, None), *unbind, probe)
    if wanted.driver == now.driver:
        return override(now.override, wanted.override)
    if wanted.driver is None:
        return (*override(now.override, wanted.override), *unbind)
    # A probe asks every driver of the bus; while it does, the override names the one that is meant.
    return (
        *override(now.override, wanted.driver),
        *unbind,
        probe,
        *override(wanted.driver, wanted.override),
    )


def _refusal(verb: str, refused: Mapping[PCIAddress, str]) -> Refusal:
    cards: dict[str, list[str]] = {}
    for address in sorted(refused):
        cards.setdefault(refused[address], []).append(str(address))
    return Refusal("; ".join(f"cannot {verb} {', '.join(cards[reason])}: {reason}" for reason in cards))


def _in_order(card: Iterable[Function]) -> list[Function]:
    """The highest function first and the GPU last: the longer it stays as it is, the more can fail before it goes."""
    return sorted(card, key=lambda function: (is_gpu(function), -function.address.function))


def _to_vfio(seen: Seen, function: Function) -> Move:
    now = seen.binding(function)
    driver = _vfio_driver(seen, function)
    remembered = _remembered(seen, function)
    # A bind that was cut off remembered what it found, and left an override that was not there before.
    former = remembered if remembered is not None and now.is_vfio else now
    return Move(
        address=function.address,
        now=now,
        wanted=Binding(driver, driver),
        former=Former(function.pci_id, former),
    )


def _from_vfio(seen: Seen, function: Function) -> Move:
    now = seen.binding(function)
    wanted = _remembered(seen, function)
    if wanted is None and now.driver is not None and not _is_vfio(now.driver):
        wanted = Binding(now.driver, None)
    return Move(address=function.address, now=now, wanted=wanted, former=None)


def _remembered(seen: Seen, function: Function) -> Binding | None:
    former = seen.former.get(function.address)
    return former.binding if former is not None and former.pci_id == function.pci_id else None


def _own_reason(seen: Seen, card: Card) -> str | None:
    """Why the card is the node's own, or its driver's way to serve guests; None where it is neither."""
    if card[0].is_bridge:
        return "it is a PCI bridge, which no guest can be given; name the devices behind it"
    for function in card:
        details = seen.details[function.address]
        it = _it(function.address, card)
        if details.boot_vga:
            return (
                f"{it} is the boot VGA, the node's own screen; "
                "let the firmware put that on another card (its setup calls it primary display)"
            )
        if details.virtual_functions:
            return f"{it} has {details.virtual_functions} virtual functions; bind those, or write 0 to its sriov_numvfs"
        if function.is_virtual and function.vendor_id == NVIDIA and function.driver == "nvidia":
            return f"{it} is a virtual function of NVIDIA's driver, which gives it to guests as a vGPU"
        mdevs = [str(mdev.uuid) for mdev in seen.host.mdevs if mdev.parent == function.address]
        if mdevs:
            return f"{it} has mediated devices: {', '.join(mdevs)}; remove them first"
    return _in_use(seen, card, _not_on_vfio(card), passing=False)


def _strangers(host: Host, card: Card, taken: Iterable[PCIAddress]) -> str | None:
    """Who else is in the card's IOMMU group, not among those `taken`, with a driver of its own."""
    group = card[0].iommu_group
    if group is None:
        return None
    members = (host.functions[address] for address in host.groups[group] if address in host.functions)
    strangers = [
        f"{member.address} ({member.driver})"
        for member in members
        if member.address not in taken
        and not member.is_bridge
        and not (member.driver is None or member.driver in PLACEHOLDERS or _is_vfio(member.driver))
    ]
    strangers += [
        f"{other.name} ({other.driver or 'cannot be read'})"
        for other in filter(keeps_its_group, host.others.get(group, ()))
    ]
    if not strangers:
        return None
    return (
        f"its IOMMU group {group} also has {', '.join(strangers)}, and a guest gets a group whole or not at all; "
        "bind the other card too or free it of its driver, or use a slot whose root port or switch has ACS"
    )


def _passing_reason(seen: Seen, card: Card) -> str | None:
    """Why the card cannot be bound as things are, though it could be; None where it can be now."""
    group = card[0].iommu_group
    if group is None or group in seen.host.noiommu:
        return (
            "it is in no IOMMU group: the IOMMU is off; turn on VT-d or AMD-Vi in the firmware, "
            "and boot with intel_iommu=on (Intel)"
        )
    unreadable = [str(address) for address in seen.host.groups[group] if address not in seen.host.functions]
    if unreadable:
        return f"its IOMMU group {group} has {', '.join(unreadable)}, which cannot be read"
    for function in _not_on_vfio(card):
        if _vfio_driver(seen, function) is None:
            module = seen.modules[function.address].replace("_", "-")
            return f"its driver {module} is not loaded; modprobe {module}"
    return _in_use(seen, card, _not_on_vfio(card), passing=True)


def _in_use(seen: Seen, card: Card, functions: Iterable[Function], *, passing: bool) -> str | None:
    said: dict[str, PCIAddress] = {}
    for function in sorted(functions, key=lambda function: function.address):
        for use in seen.uses[function.address]:
            if use.passing is passing:
                said.setdefault(use.what, function.address)  # a group is open for all its functions
    if not said:
        return None
    users = (
        f"{_it(address, card)} is in use: {', '.join(what for what in said if said[what] == address)}"
        for address in dict.fromkeys(said.values())
    )
    return f"{'; '.join(users)}; end that first"


def _driver_gone(seen: Seen, card: Card, functions: Iterable[Function]) -> str | None:
    for function in functions:
        former = _remembered(seen, function)
        if former is not None and former.driver is not None and former.driver not in seen.drivers:
            it = _it(function.address, card)
            return f"{it} was on {former.driver}, which is not loaded; modprobe {former.driver}"
    return None


def _it(address: PCIAddress, card: Card) -> str:
    """What a function is called after the name of its card."""
    return "it" if address == card[0].address else str(address)


def _vfio_driver(seen: Seen, function: Function) -> str | None:
    """A driver is called as its module, with underscores or with hyphens: vfio-pci, nvgrace_gpu_vfio_pci."""
    module = seen.modules[function.address]
    return next((name for name in (module, module.replace("_", "-")) if name in seen.drivers), None)


def _not_on_vfio(card: Iterable[Function]) -> list[Function]:
    return [function for function in card if not _is_vfio(function.driver)]


def _is_vfio(driver: str | None) -> bool:
    return driver is not None and is_vfio_driver(driver)
