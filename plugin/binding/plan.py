"""Which cards are bound to vfio or given back, and by which moves: decided before the first write, or refused."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pci.address import PCIAddress
from pci.cards import Card, cards_of
from pci.functions import is_gpu, is_vfio_driver
from pci.host import Function, Host
from pci.vendors import PREFIXES
from pci.viability import Hindrance
from plugin.binding.hindrances import former_driver_gone, former_drivers_unknown, hindrances, in_use, others_on_bus
from plugin.binding.moves import DriverBinding, Move, Setting
from plugin.binding.survey import Survey
from plugin.cards.config import Config
from plugin.cards.inventory import NOTHING, VFIOSettings, fitting, is_left_to_the_node, wanted_settings
from plugin.changes.journal import Former
from program.errors import Refusal
from program.problem import Problem

_AS_IT_IS = Config()


@dataclass(frozen=True, slots=True)
class Plan:
    """The moves, in order, and the skipped cards, with reasons."""

    moves: tuple[Move, ...]
    skipped: tuple[Problem, ...] = ()


class NotRebound(Refusal):
    """Why cards are not bound or given back; `reasons` has it by a function of each."""

    def __init__(
        self, subject: object, wrong: str, fix: str, *more: Problem, reasons: Mapping[PCIAddress, Problem] | None = None
    ) -> None:
        super().__init__(subject, wrong, fix, *more)
        self.reasons = reasons or {}


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
    left, own, refused = hindrances(survey, cards, config)
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
        if not is_vfio_driver(function.driver)
    )
    return Plan(tuple(moves), tuple(_problem(str(address), own[address]) for address in sorted(own)))


def plan_unbind(survey: Survey, cards: Iterable[Card]) -> Plan:
    """Plan to give back the functions of these cards that vfio has: to their former drivers, or, if not remembered, to
    the kernel's choice. Refusal if a guest, a pod or a claim has a card, its former driver is not loaded any more, or
    the file of former drivers cannot be read."""
    moves: list[Move] = []
    refused: dict[PCIAddress, Hindrance] = {}
    for card in sorted(cards, key=lambda card: card[0].address):
        bound = [function for function in _in_order(card) if survey.binding(function).is_vfio]
        bound.reverse()
        reason = (
            (former_drivers_unknown(survey) if bound else None)
            or in_use(survey, card, bound, passing=False)
            or in_use(survey, card, bound, passing=True)
            or former_driver_gone(survey, card, bound)
        )
        if reason is not None:
            refused[card[0].address] = reason
        moves += [_from_vfio(survey, function) for function in bound]
    if refused:
        raise _refusal("unbind", refused)
    return Plan(tuple(moves))


def _refusal(verb: str, refused: Mapping[PCIAddress, Hindrance]) -> NotRebound:
    """Return an error with a problem for each reason, and all cards with that reason in it."""
    cards: dict[Hindrance, list[str]] = {}
    for address in sorted(refused):
        cards.setdefault(refused[address], []).append(str(address))
    first, *more = (_problem(f"cannot {verb} {', '.join(addresses)}", reason) for reason, addresses in cards.items())
    reasons = {address: _problem(str(address), reason) for address, reason in refused.items()}
    return NotRebound(*first, *more, reasons=reasons)


def _problem(subject: str, reason: Hindrance) -> Problem:
    return Problem(subject, reason.wrong, reason.fix)


def _in_order(card: Iterable[Function]) -> list[Function]:
    """Sort the highest function first and the GPU last, after which the least can fail."""
    return sorted(card, key=lambda function: (is_gpu(function), -function.address.function))


def _to_vfio(survey: Survey, function: Function, wanted: VFIOSettings) -> Move:
    now = survey.binding(function)
    driver = survey.vfio_driver(function)
    remembered = survey.former_binding(function)
    # An interrupted bind remembered what it found, and left an override that was not there before.
    former = remembered if remembered is not None and now.is_vfio else now
    # Also the settings of a bind that was killed before it reached the driver.
    kept = {} if not (known := survey.former_of(function)) else known.settings
    settings = tuple(_settings(survey, function, wanted, kept))
    before = {**kept, **{setting.name: setting.before for setting in settings}}
    return Move(
        address=function.address,
        now=now,
        target=DriverBinding(driver, driver),
        former=Former(function.pci_id, former.driver, former.override, before),
        settings=settings,
    )


def _settings(survey: Survey, function: Function, wanted: VFIOSettings, kept: Mapping[str, str]) -> Iterator[Setting]:
    """Yield what has to be changed. `kept` is what was there before an earlier change."""
    details = survey.details[function.address]
    if wanted.d3cold_allowed is not None and details.d3cold_allowed not in (None, wanted.d3cold_allowed):
        name = "d3cold_allowed"
        yield Setting(name, kept.get(name, f"{int(details.d3cold_allowed or False)}"), f"{int(wanted.d3cold_allowed)}")
    has = details.reset_methods
    if wanted.reset_methods is not None and has not in (None, wanted.reset_methods):
        name = "reset_method"
        # The kernel lists `bus` from before it found a card's second function, and does not take it back.
        restorable = [method for method in has or () if method != "bus" or not others_on_bus(survey.host, function)]
        yield Setting(name, kept.get(name, " ".join(restorable)), " ".join(wanted.reset_methods))


def _from_vfio(survey: Survey, function: Function) -> Move:
    now = survey.binding(function)
    target = survey.former_binding(function)
    if target is None and now.driver is not None and not is_vfio_driver(now.driver):
        target = DriverBinding(now.driver, None)
    return Move(
        address=function.address,
        now=now,
        target=target,
        former=None,
        settings=tuple(_former_settings(survey, function)),
    )


def _former_settings(survey: Survey, function: Function) -> Iterator[Setting]:
    details, known = survey.details[function.address], survey.former_of(function)
    now = {
        "d3cold_allowed": None if details.d3cold_allowed is None else f"{int(details.d3cold_allowed)}",
        "reset_method": None if details.reset_methods is None else " ".join(details.reset_methods),
    }
    for name, line in () if known is None else sorted(known.settings.items()):
        if (held := now.get(name)) is not None and held != line:
            yield Setting(name, held, line)
