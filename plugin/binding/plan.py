"""The writes to sysfs that give whole cards to vfio, or back: all are decided before the first one, or refused.

They use `driver_override` (kernel Documentation/ABI/testing/sysfs-bus-pci), which concerns one function; `new_id` also
concerns functions that are plugged in later. A function's override is written before its driver is unbound, so that no
other driver can take the function in between.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from pci.address import PCIAddress
from pci.cards import Card, cards_of
from pci.functions import is_gpu, is_vfio_driver
from pci.host import Details, Function, Host
from pci.sysfs.functions import DEVICES
from pci.vendors import NVIDIA, PREFIXES
from pci.viability import BOOT_VGA, NO_IOMMU, PLACEHOLDERS, Hindrance, keeps_its_group
from plugin.binding.uses import Use
from plugin.cards.config import Config
from plugin.cards.inventory import NOTHING, Settings, fitting, is_left_to_the_node, wanted_settings
from program.errors import Refusal
from program.problem import Problem

_PROBE = "bus/pci/drivers_probe"
_AS_IT_IS = Config()


@dataclass(frozen=True, slots=True)
class DriverBinding:
    """The driver that has a function, and the only one that may take it (`driver_override`); None if there is none."""

    driver: str | None
    override: str | None

    @property
    def is_vfio(self) -> bool:
        """Whether vfio has the function, or alone may have it: an interrupted bind leaves the override behind."""
        return _is_vfio(self.driver) or _is_vfio(self.override)


@dataclass(frozen=True, slots=True)
class Write:
    """The line `text` for the file `path` below /sys; as a string it is a shell command."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"echo {self.text} > /sys/{self.path}" if self.text else f"echo > /sys/{self.path}"


@dataclass(frozen=True, slots=True)
class Former:
    """What a function had before it was bound to vfio. Another card in the same slot has another PCI `id`. `settings`
    are the lines of those of its files that are otherwise meanwhile, by name (`reset_method`)."""

    id: str
    driver: str | None
    override: str | None
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Setting:
    """A change of a function's file `name`, d3cold_allowed or reset_method: the line in it before, and after."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The move of a function from one driver to another. `target` is None if the kernel is to choose. `former` is
    remembered while vfio has the function; None for a move back. `settings` change with the driver, so that they are in
    force whenever vfio has the function: a function that vfio takes may lose its power at once."""

    address: PCIAddress
    now: DriverBinding
    target: DriverBinding | None
    former: Former | None
    settings: tuple[Setting, ...] = ()

    @property
    def writes(self) -> tuple[Write, ...]:
        moving = writes(self.address, self.now, self.target)
        settings = tuple(self._write(setting.name, setting.after) for setting in self.settings)
        return (*moving, *settings) if self.former is None else (*settings, *moving)

    def undoing(self, now: DriverBinding) -> tuple[Write, ...]:
        """Return the writes that undo the move, however far it came: the function has the driver `now`."""
        moving = writes(self.address, now, self.now)
        settings = tuple(self._write(setting.name, setting.before) for setting in self.settings)
        return (*settings, *moving) if self.former is None else (*moving, *settings)

    def _write(self, name: str, text: str) -> Write:
        return Write(f"{DEVICES}/{self.address}/{name}", text)


@dataclass(frozen=True, slots=True)
class Plan:
    """The moves, in order, and the skipped cards, with reasons."""

    moves: tuple[Move, ...]
    skipped: tuple[Problem, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What a plan is made from.

    `details`, `uses` and `modules` (of the vfio drivers) have every function of the cards. `drivers` are all drivers of
    the PCI bus. `former` are the remembered former drivers. `unseen` says why uses may be missing; None if none are.
    """

    host: Host
    details: Mapping[PCIAddress, Details]
    uses: Mapping[PCIAddress, tuple[Use, ...]]
    modules: Mapping[PCIAddress, str]
    drivers: frozenset[str]
    former: Mapping[PCIAddress, Former]
    unseen: Problem | None

    def binding(self, function: Function) -> DriverBinding:
        return DriverBinding(function.driver, self.details[function.address].driver_override)


def named_cards(host: Host, addresses: Iterable[PCIAddress]) -> tuple[Card, ...]:
    """Return the cards that these functions belong to, each once, ascending; Refusal for an unknown address."""
    addresses = sorted(set(addresses))
    for address in addresses:
        if address not in host.functions:
            faults = "".join(f", {fault}" for fault in host.faults if str(address) in fault.path)
            raise Refusal(address, f"this node has no such PCI function{faults}", "lspci -D lists what it has")
    return cards_of(host, addresses)


def offered_cards(host: Host, config: Config) -> tuple[Card, ...]:
    """Return the cards that would be offered if vfio had them: every NVIDIA, AMD and Intel GPU, and cards of rules."""
    return tuple(card for card in cards_of(host) if _is_offered(host, card, config))


def cards_to_bind(host: Host, config: Config) -> tuple[Card, ...]:
    """Return the offered cards that `bind --all` binds: all but those that the config cuts into vGPUs, and the
    processor's own GPU, the node's console, unless a rule of the config fits it."""
    return tuple(
        card
        for card in offered_cards(host, config)
        if not any(config.vgpus_of(one) or is_left_to_the_node(host, card, one, config) for one in card)
    )


def _is_offered(host: Host, card: Card, config: Config) -> bool:
    if (fits := fitting(host, card, config)) is not None:
        return not fits[0].withhold
    return any(is_gpu(function) and function.vendor_id in PREFIXES for function in card)


def plan_bind(survey: Survey, cards: Iterable[Card], *, config: Config = _AS_IT_IS, skip: bool = False) -> Plan:
    """Plan to bind to vfio every function of these cards that is not there already, with what the config wants of it.

    Refusal, naming every card that cannot be bound with its reason. With `skip` the node's own cards (its console, its
    disk, cards in one group with those) are skipped instead. A card that could be bound once its users let go of it, or
    a module is loaded, is still a Refusal.
    """
    left, own, refused = _reasons(survey, cards, config)
    if not skip:
        refused |= own
    if refused:
        raise _refusal("bind", refused)
    moves = (
        _to_vfio(survey, function, wanted.get(function.address, NOTHING))
        for address, card in sorted(left.items())
        if address not in own
        for wanted in [wanted_settings(survey.host, card, config)]
        for function in _in_order(card)
        if not _is_vfio(function.driver)
    )
    return Plan(tuple(moves), tuple(_problem(str(address), own[address]) for address in sorted(own)))


def hindrance(survey: Survey, cards: Iterable[Card], config: Config = _AS_IT_IS) -> Hindrance | None:
    """Return why these cards cannot be bound to vfio together now, as the config wants it; None if they can."""
    if survey.unseen is not None:
        wrong = f"who uses it cannot be seen: {survey.unseen.subject} {survey.unseen.wrong}"
        return Hindrance(f"cannot be bound to vfio: {wrong}", survey.unseen.fix)
    _, own, refused = _reasons(survey, cards, config)
    reasons = own | refused
    if not reasons:
        return None
    first = reasons[min(reasons)]
    return Hindrance(f"cannot be bound to vfio: {first.wrong}", first.fix)


#: Why cards cannot be bound, by the first function of each.
_Reasons: TypeAlias = dict[PCIAddress, Hindrance]


def _reasons(
    survey: Survey, cards: Iterable[Card], config: Config
) -> tuple[dict[PCIAddress, Card], _Reasons, _Reasons]:
    """Return, by first functions, the cards that vfio does not wholly have; why some of them are the node's own; and
    why others cannot be bound at the moment."""
    left = {card[0].address: card for card in cards if any(not _is_vfio(function.driver) for function in card)}
    own = {address: reason for address, card in left.items() if (reason := _own_reason(survey, card)) is not None}
    while True:
        taken = {function.address for address, card in left.items() if address not in own for function in card}
        strangers = {
            address: reason
            for address, card in left.items()
            if address not in own and (reason := _strangers(survey.host, card, taken)) is not None
        }
        if not strangers:
            break
        own |= strangers  # a card that shares a group with one of them has a stranger more
    refused = {
        address: reason
        for address, card in left.items()
        if address not in own
        and (reason := _passing_reason(survey, card) or _unsettable(survey, card, config)) is not None
    }
    return left, own, refused


def plan_unbind(survey: Survey, cards: Iterable[Card]) -> Plan:
    """Plan to give back the functions of these cards that vfio has: to their former drivers, or, if not remembered, to
    the kernel's choice. Refusal if a guest has a card, or its former driver is not loaded any more."""
    moves: list[Move] = []
    refused: dict[PCIAddress, Hindrance] = {}
    for card in sorted(cards, key=lambda card: card[0].address):
        bound = [function for function in _in_order(card) if survey.binding(function).is_vfio]
        bound.reverse()
        reason = _in_use(survey, card, bound, passing=True) or _driver_gone(survey, card, bound)
        if reason is not None:
            refused[card[0].address] = reason
        moves += [_from_vfio(survey, function) for function in bound]
    if refused:
        raise _refusal("unbind", refused)
    return Plan(tuple(moves))


def writes(address: PCIAddress, now: DriverBinding, target: DriverBinding | None) -> tuple[Write, ...]:
    """Return the writes that take a function from `now` to `target`, or to the kernel's choice."""
    function = f"{DEVICES}/{address}"
    unbind = (Write(f"{function}/driver/unbind", str(address)),) if now.driver is not None else ()
    probe = Write(_PROBE, str(address))

    def override(before: str | None, after: str | None) -> tuple[Write, ...]:
        return (Write(f"{function}/driver_override", after or ""),) if before != after else ()

    if target is None:
        return (*override(now.override, None), *unbind, probe)
    if target.driver == now.driver:
        return override(now.override, target.override)
    if target.driver is None:
        return (*override(now.override, target.override), *unbind)
    # A probe asks every driver of the bus; during it the override names the wanted one.
    return (*override(now.override, target.driver), *unbind, probe, *override(target.driver, target.override))


def _refusal(verb: str, refused: Mapping[PCIAddress, Hindrance]) -> Refusal:
    """Return an error with a problem for each reason, and all cards with that reason in it."""
    cards: dict[Hindrance, list[str]] = {}
    for address in sorted(refused):
        cards.setdefault(refused[address], []).append(str(address))
    first, *more = (_problem(f"cannot {verb} {', '.join(addresses)}", reason) for reason, addresses in cards.items())
    return Refusal(*first, *more)


def _problem(subject: str, reason: Hindrance) -> Problem:
    return Problem(subject, reason.wrong, reason.fix)


def _in_order(card: Iterable[Function]) -> list[Function]:
    """Sort the highest function first and the GPU last, after which the least can fail."""
    return sorted(card, key=lambda function: (is_gpu(function), -function.address.function))


def _to_vfio(survey: Survey, function: Function, wanted: Settings) -> Move:
    now = survey.binding(function)
    driver = _vfio_driver(survey, function)
    remembered = _remembered(survey, function)
    # An interrupted bind remembered what it found, and left an override that was not there before.
    former = remembered if remembered is not None and now.is_vfio else now
    # Also the settings of a bind that was killed before it reached the driver.
    kept = {} if not (known := _known(survey, function)) else known.settings
    settings = tuple(_settings(survey, function, wanted, kept))
    before = {**kept, **{setting.name: setting.before for setting in settings}}
    return Move(
        address=function.address,
        now=now,
        target=DriverBinding(driver, driver),
        former=Former(function.pci_id, former.driver, former.override, before),
        settings=settings,
    )


def _settings(survey: Survey, function: Function, wanted: Settings, kept: Mapping[str, str]) -> Iterator[Setting]:
    """Yield what has to be changed. `kept` is what was there before an earlier change."""
    details = survey.details[function.address]
    if wanted.d3cold_allowed is not None and details.d3cold_allowed not in (None, wanted.d3cold_allowed):
        name = "d3cold_allowed"
        yield Setting(name, kept.get(name, f"{int(details.d3cold_allowed or False)}"), f"{int(wanted.d3cold_allowed)}")
    has = details.reset_methods
    if wanted.reset_methods is not None and has not in (None, wanted.reset_methods):
        name = "reset_method"
        # The kernel lists `bus` from before it found a card's second function, and does not take it back.
        restorable = [method for method in has or () if method != "bus" or not _on_its_bus(survey.host, function)]
        yield Setting(name, kept.get(name, " ".join(restorable)), " ".join(wanted.reset_methods))


def _on_its_bus(host: Host, function: Function) -> list[str]:
    """Return the other functions on a function's bus. With any, the kernel has no reset `bus` for one of them
    (pci_parent_bus_reset in drivers/pci/pci.c)."""
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
        if methods and "bus" in methods and (others := _on_its_bus(survey.host, function)):
            wrong = (
                f"{it} shares its bus with {', '.join(others)}, so that the kernel has no reset_method bus for it alone"
            )
            return Hindrance(wrong, "reset_method: [] has VFIO reset the bus with the whole card")
    return None


def _from_vfio(survey: Survey, function: Function) -> Move:
    now = survey.binding(function)
    target = _remembered(survey, function)
    if target is None and now.driver is not None and not _is_vfio(now.driver):
        target = DriverBinding(now.driver, None)
    return Move(
        address=function.address,
        now=now,
        target=target,
        former=None,
        settings=tuple(_former_settings(survey, function)),
    )


def _former_settings(survey: Survey, function: Function) -> Iterator[Setting]:
    details, known = survey.details[function.address], _known(survey, function)
    now = {
        "d3cold_allowed": None if details.d3cold_allowed is None else f"{int(details.d3cold_allowed)}",
        "reset_method": None if details.reset_methods is None else " ".join(details.reset_methods),
    }
    for name, line in () if known is None else sorted(known.settings.items()):
        if (held := now.get(name)) is not None and held != line:
            yield Setting(name, held, line)


def _remembered(survey: Survey, function: Function) -> DriverBinding | None:
    former = _known(survey, function)
    return None if former is None else DriverBinding(former.driver, former.override)


def _known(survey: Survey, function: Function) -> Former | None:
    former = survey.former.get(function.address)
    return None if former is None or former.id != function.pci_id else former


def _own_reason(survey: Survey, card: Card) -> Hindrance | None:
    """Return why the card is the node's own, or serves guests through its driver; None if neither."""
    if card[0].is_bridge:
        return Hindrance("it is a PCI bridge, which no guest can be given", "name the devices behind it")
    for function in card:
        details = survey.details[function.address]
        it = _it(function.address, card)
        if function.boot_vga:
            return Hindrance(f"{it} {BOOT_VGA.wrong}", BOOT_VGA.fix)
        if details.virtual_functions:
            return Hindrance(
                f"{it} has {details.virtual_functions} virtual functions",
                "bind those, or write 0 to its sriov_numvfs",
            )
        if function.is_virtual and function.vendor_id == NVIDIA and function.driver == "nvidia":
            return Hindrance(
                f"{it} is a virtual function of NVIDIA's driver, which gives it to guests as a vGPU",
                "leave it on that driver: it is offered by its type",
            )
        mdevs = [str(mdev.uuid) for mdev in survey.host.mdevs if mdev.parent == function.address]
        if mdevs:
            return Hindrance(f"{it} has mediated devices: {', '.join(mdevs)}", "remove them first")
    return _in_use(survey, card, _not_on_vfio(card), passing=False)


def _strangers(host: Host, card: Card, taken: Iterable[PCIAddress]) -> Hindrance | None:
    """Return which other members of the card's IOMMU group, not `taken`, have drivers that keep it from vfio."""
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
    return Hindrance(
        f"its IOMMU group {group} also has {', '.join(strangers)}, and a guest gets a group whole or not at all",
        "bind the other card too or free it of its driver, or use a slot whose root port or switch has ACS",
    )


def _passing_reason(survey: Survey, card: Card) -> Hindrance | None:
    """Return why the card cannot be bound at the moment, though it could be; None if it can."""
    group = card[0].iommu_group
    if group is None or group in survey.host.noiommu:
        return Hindrance(f"it {NO_IOMMU.wrong}", NO_IOMMU.fix)
    unreadable = [str(address) for address in survey.host.groups[group] if address not in survey.host.functions]
    if unreadable:
        return Hindrance(
            f"its IOMMU group {group} has {', '.join(unreadable)}, which cannot be read",
            "the kernel's log may say what became of it",
        )
    for function in _not_on_vfio(card):
        if _vfio_driver(survey, function) is None:
            module = survey.modules[function.address].replace("_", "-")
            return Hindrance(f"its driver {module} is not loaded", f"modprobe {module}")
    return _in_use(survey, card, _not_on_vfio(card), passing=True)


def _in_use(survey: Survey, card: Card, functions: Iterable[Function], *, passing: bool) -> Hindrance | None:
    uses: dict[str, PCIAddress] = {}
    for function in sorted(functions, key=lambda function: function.address):
        for use in survey.uses[function.address]:
            if use.passing is passing:
                uses.setdefault(use.what, function.address)  # a group is open for all its functions
    if not uses:
        return None
    users = (
        f"{_it(address, card)} is in use: {', '.join(what for what in uses if uses[what] == address)}"
        for address in dict.fromkeys(uses.values())
    )
    return Hindrance(", and ".join(users), "end that first")


def _driver_gone(survey: Survey, card: Card, functions: Iterable[Function]) -> Hindrance | None:
    for function in functions:
        former = _remembered(survey, function)
        if former is not None and former.driver is not None and former.driver not in survey.drivers:
            it = _it(function.address, card)
            return Hindrance(f"{it} was on {former.driver}, which is not loaded", f"modprobe {former.driver}")
    return None


def _it(address: PCIAddress, card: Card) -> str:
    """Return the word for a function after the name of its card."""
    return "it" if address == card[0].address else str(address)


def _vfio_driver(survey: Survey, function: Function) -> str | None:
    """Return the name of the function's vfio driver if it is loaded. Drivers are called like their modules, with
    underscores or with hyphens: vfio-pci, nvgrace_gpu_vfio_pci."""
    module = survey.modules[function.address]
    return next((name for name in (module, module.replace("_", "-")) if name in survey.drivers), None)


def _not_on_vfio(card: Iterable[Function]) -> list[Function]:
    return [function for function in card if not _is_vfio(function.driver)]


def _is_vfio(driver: str | None) -> bool:
    return driver is not None and is_vfio_driver(driver)
