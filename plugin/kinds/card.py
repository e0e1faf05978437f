"""A whole card: all its functions move to vfio, and back to their former drivers. Each move is decided before the first
write, or refused."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pci.address import PCIAddress
from pci.cards import Card, cards_of
from pci.functions import is_gpu, is_vfio_driver
from pci.host import Function, Host
from pci.sysfs.attribute import Unreadable, link_name
from pci.sysfs.details import read_details
from pci.sysfs.functions import DEVICES, read_host
from pci.vendors import PREFIXES
from pci.viability import Hindrance
from plugin import nvml
from plugin.cards.config import Config
from plugin.cards.rules import (
    NOTHING,
    VFIOSettings,
    cards_by_rules,
    fitting,
    is_left_to_the_node,
    wanted_settings,
)
from plugin.changes.engine import ASK_THE_KERNEL, Failed, NodeChange, NodeIO, Roots, Wedged, Write, carry_out
from plugin.changes.journal import Former, Journal
from plugin.changes.processes import read_processes, refuse_unseen
from plugin.changes.users import AskUsers, Users
from plugin.kinds.drivers import DriverBinding, writes
from plugin.kinds.hindrances import (
    former_driver_gone,
    former_drivers_unknown,
    hindrance,
    hindrances,
    in_use,
    others_on_bus,
)
from plugin.kinds.modalias import read_aliases
from plugin.kinds.survey import Survey, look, survey_of
from plugin.sysfs_child import ask, read_or_refused
from program.errors import Refusal
from program.problem import Problem

_LOOKS, _APART = 100, 0.05  # for a function's new driver; the second in seconds

_AS_IT_IS = Config()

#: Functions that choose cards, and that decide on a plan for them.
Choose = Callable[[Host], tuple[Card, ...]]
Decide = Callable[[Survey, tuple[Card, ...]], "Plan"]


@dataclass(frozen=True, slots=True)
class Setting:
    """A change of a function's file `name` (d3cold_allowed or reset_method): its line before and after."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Move(NodeChange):
    """The move of a function from one driver to another. `target` is None if the kernel is to choose. `former` is
    remembered while vfio has the function; None for a move back. `known` is the entry remembered so far. `settings`
    change with the driver, so that they are in force whenever vfio has the function: a function that vfio takes may
    lose its power at once."""

    address: PCIAddress
    now: DriverBinding
    target: DriverBinding | None
    former: Former | None
    known: Former | None = None
    settings: tuple[Setting, ...] = ()

    def __str__(self) -> str:
        return str(self.address)

    @property
    def device(self) -> PCIAddress:
        return self.address

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

    def before(self, journal: Journal) -> Journal:
        return journal if self.former is None else journal.with_entry("former", str(self), self.former)

    def do(self, node: NodeIO) -> tuple[NodeChange, ...]:
        undoing = _MoveBack(self)
        try:
            node.do_writes(self.writes)
            _await_driver(node, self.address, self.target)
        except Wedged:
            # Reading its driver_override would hang as well: the kernel holds the device's lock.
            raise
        except Failed as failed:
            try:
                undoing.do(node)
            except Failed as left:
                failed.left = str(left)
            raise
        return (undoing,)

    def after(self, journal: Journal) -> Journal:
        return journal.without("former", str(self)) if self.former is None else journal

    def undone(self, journal: Journal) -> Journal:
        return (
            journal.without("former", str(self))
            if self.known is None
            else journal.with_entry("former", str(self), self.known)
        )


@dataclass(frozen=True, slots=True)
class _MoveBack(NodeChange):
    """The undoing of a move, however far it came."""

    move: Move

    @property
    def device(self) -> PCIAddress:
        return self.move.address

    def before(self, journal: Journal) -> Journal:
        return journal if self.move.known is None else self.move.undone(journal)

    def do(self, node: NodeIO) -> tuple[NodeChange, ...]:
        address = self.move.address
        try:
            driver = link_name(node.sys, f"{DEVICES}/{address}/driver")
            now = DriverBinding(driver, read_details(node.sys, address).driver_override)
            node.do_writes(self.move.undoing(now))
            _await_driver(node, address, self.move.now)
        except Unreadable as unreadable:
            fault = unreadable.fault
            raise Failed(fault.path, fault.wrong, ASK_THE_KERNEL, left=str(unreadable)) from unreadable
        except Failed as failed:
            failed.left = str(failed)  # so that it stays remembered
            raise
        return ()

    def after(self, journal: Journal) -> Journal:
        return self.move.undone(journal)


def _await_driver(node: NodeIO, address: PCIAddress, target: DriverBinding | None) -> None:
    driver: str | None = None

    def is_there() -> bool:
        nonlocal driver
        driver = link_name(node.sys, f"{DEVICES}/{address}/driver")
        return not is_vfio_driver(driver) if target is None else driver == target.driver

    try:
        if node.awaited(is_there, _LOOKS, _APART):
            return
    except Unreadable as unreadable:
        raise Failed(unreadable.fault.path, unreadable.fault.wrong, ASK_THE_KERNEL) from unreadable
    if target is None:
        wrong = f"was given to {driver} again: its ID stands in vfio-pci.ids= or was written to new_id"
        raise Failed(address, wrong, "take its ID out of there")
    wrong = f"is on {driver or 'no driver'}, expected {target.driver or 'no driver'}"
    raise Failed(address, wrong, ASK_THE_KERNEL)


@dataclass(frozen=True, slots=True)
class Plan:
    """The moves, in order, and the skipped cards, with reasons."""

    moves: tuple[Move, ...]
    skipped: tuple[Problem, ...] = ()


class NotRebound(Refusal):
    """Cards cannot be bound or given back; `reasons` has the reason by a function of each card."""

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
    return tuple(card for card in cards_by_rules(host, config) if _is_offered(host, card, config))


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
    """Plan to bind to vfio every function of these cards that is not there already, with its settings by the config.

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
    """Plan to give back the functions of these cards that vfio has, or had before an unbind that was ended on the way:
    to their former drivers, or, if not remembered, to the kernel's choice. Refusal if a guest, a pod or a claim has a
    card, its former driver is not loaded any more, or the file of former drivers cannot be read."""
    moves: list[Move] = []
    refused: dict[PCIAddress, Hindrance] = {}
    for card in sorted(cards, key=lambda card: card[0].address):
        ours = [each for each in _in_order(card) if survey.binding(each).is_vfio or survey.is_half_given_back(each)]
        ours.reverse()
        bound = [function for function in ours if survey.binding(function).is_vfio]
        reason = (
            (former_drivers_unknown(survey) if bound else None)
            or in_use(survey, card, bound, passing=False)
            or in_use(survey, card, bound, passing=True)
            or former_driver_gone(survey, card, ours)
        )
        if reason is not None:
            refused[card[0].address] = reason
        moves += [_from_vfio(survey, function) for function in ours]
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
    """Sort the highest function first and the GPU last: then the least can fail after the GPU's move."""
    return sorted(card, key=lambda function: (is_gpu(function), -function.address.function))


def _to_vfio(survey: Survey, function: Function, wanted: VFIOSettings) -> Move:
    now = survey.binding(function)
    driver = survey.vfio_driver(function)
    remembered = survey.former_binding(function)
    # After an interrupted bind or unbind the present binding is not the former one.
    is_left = now.is_vfio or survey.is_half_given_back(function)
    former = remembered if remembered is not None and is_left else now
    # Also the settings of a bind that was killed before it reached the driver.
    kept = {} if not (known := survey.former_of(function)) else known.settings
    settings = tuple(_settings(survey, function, wanted, kept))
    before = {**kept, **{setting.name: setting.before for setting in settings}}
    return Move(
        address=function.address,
        now=now,
        target=DriverBinding(driver, driver),
        former=Former(function.pci_id, former.driver, former.override, before),
        known=survey.former.get(str(function.address)),
        settings=settings,
    )


def _settings(survey: Survey, function: Function, wanted: VFIOSettings, kept: Mapping[str, str]) -> Iterator[Setting]:
    """Yield the settings that have to change. `kept` are the lines from before an earlier change."""
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
        known=survey.former.get(str(function.address)),
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


def refusals(
    sys: Path, devices: Mapping[str, Sequence[PCIAddress]], config: Config, *, roots: Roots
) -> Mapping[str, Hindrance | None]:
    """Return why each device (its functions, by any name) cannot be bound to vfio now, None if it can: the reason that
    `bind` would give for it alone, by the config, ignoring errors of the state file. For Reader.ask; Refusal if the
    node cannot be read."""
    host = read_host(sys)
    try:
        with read_or_refused(roots.sys):
            processes, aliases = read_processes(roots.proc), read_aliases(roots.modules)
    except Refusal as error:
        return dict.fromkeys(devices, _cannot_be_bound(error))

    def refusal(functions: Sequence[PCIAddress]) -> Hindrance | None:
        try:
            cards = named_cards(host, functions)
            with read_or_refused(roots.sys):
                # Reading former drivers takes longest; plugin/node/look does it.
                return hindrance(survey_of(roots, host, cards, processes, aliases, ({}, None), Users()), cards, config)
        except Refusal as error:
            return _cannot_be_bound(error)

    return {name: refusal(functions) for name, functions in devices.items()}


def _cannot_be_bound(error: Refusal) -> Hindrance:
    subject, wrong, fix = error.problem
    return Hindrance(f"cannot be bound to vfio: {subject} {wrong}", fix)


def rebind(
    roots: Roots,
    choose: Choose,
    decide: Decide,
    ask_users: AskUsers,
    before: Callable[[Plan], None] = lambda plan: None,
) -> Plan:
    """Choose cards, decide on a plan for them and carry it out, while other binders of this node are kept out; return
    the plan. `before` is called just before the first write. Refusal if that fails."""
    with roots.journal.alone():
        plan, survey = planned(roots, choose, decide, ask_users)
        if plan.moves:
            refuse_unseen(survey.unseen)
        before(plan)
        if cards := [survey.host.functions[move.address] for move in plan.moves if move.now.driver == nvml.DRIVER]:
            ask(nvml.keep, roots.sys, cards, proc=roots.proc, state=roots.state)
        move(NodeIO.of(roots), plan)
    return plan


def planned(roots: Roots, choose: Choose, decide: Decide, ask_users: AskUsers) -> tuple[Plan, Survey]:
    """Return the plan for the chosen cards, and the survey that it was made from."""
    host, _ = ask(read_host, roots.sys)
    cards, users = choose(host), ask_users(host)
    # Details and parts of a function take its driver's lock.
    survey, _ = ask(lambda _: look(roots, host, cards, users), roots.sys)
    return decide(survey, cards), survey


def move(node: NodeIO, plan: Plan) -> None:
    """Do the plan's moves; NotRebound if one fails, naming moves that could not be undone: these stay remembered, so
    that unbind can undo them."""
    if plan.moves and (shortfall := carry_out(node, plan.moves, remember_first=True)) is not None:
        reason = shortfall.outcome("everything is as it was before")
        raise NotRebound(*reason, reasons={shortfall.change.device: reason})
