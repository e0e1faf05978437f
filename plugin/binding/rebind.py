"""Reads what plans are made from, and does, watches and undoes their writes."""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

from pci.address import PCIAddress
from pci.cards import Card
from pci.functions import is_vfio_driver
from pci.host import Host
from pci.sysfs.attribute import Unreadable, link_name, names
from pci.sysfs.details import read_details
from pci.sysfs.functions import DEVICES, read_host
from pci.viability import Hindrance
from plugin import nvml
from plugin.binding.hindrances import hindrance
from plugin.binding.modalias import Alias, best_module, read_aliases
from plugin.binding.moves import DriverBinding, Move, Write
from plugin.binding.plan import NotRebound, Plan, named_cards
from plugin.binding.survey import Survey
from plugin.cards.config import Config
from plugin.changes.journal import Former, JournalFile
from plugin.changes.processes import Processes, read_processes, refuse_unseen
from plugin.changes.users import NOBODY, Users
from plugin.changes.uses import given_to, uses
from plugin.state_files import Broken, boot_id
from plugin.sysfs_child import ask, read_or_refused
from program.child import Late, NoAnswer, forked, let_go_of_standard_files
from program.errors import Refusal
from program.problem import Problem

_DRIVERS = "bus/pci/drivers"
_ASK_THE_KERNEL = "the kernel's log says why (dmesg)"

#: How long the kernel may take for a write: drivers need seconds to stop and to start a GPU.
_WRITE_SECONDS = 30.0
_DRIVER_SECONDS = 5.0  # from a write until the function has its new driver
_LOOK_EVERY = 0.05

#: Chooses cards, and decides what is to become of them.
Choose = Callable[[Host], tuple[Card, ...]]
Decide = Callable[[Survey, tuple[Card, ...]], Plan]
#: Says who was given the host's devices; Refusal if that is not known.
Given = Callable[[Host], Users]
#: Does one write; OSError if the kernel refuses it, Late if it does not return.
Writer = Callable[[Write], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """The directories that stand for /sys, /proc, /dev and /lib/modules/RELEASE, and where the journal is."""

    sys: Path
    proc: Path
    dev: Path
    modules: Path
    state: Path

    @classmethod
    def beside(cls, sys: Path, state: Path) -> Self:
        """Return the directories of a node by its /sys: the others are neighbours of that."""
        root = sys.absolute().parent
        modules = root / "lib/modules" / os.uname().release
        return cls(sys=sys, proc=root / "proc", dev=root / "dev", modules=modules, state=state)

    @property
    def journal(self) -> JournalFile:
        return JournalFile(self.state, boot_id(self.proc))


class Failed(Exception):
    """The write or move that failed, and how. `hangs`: the kernel has not returned from it."""

    def __init__(self, subject: object, wrong: str, fix: str, *, hangs: bool = False) -> None:
        super().__init__(f"{subject}: {wrong}")
        self.problem = Problem(str(subject), wrong, fix)
        self.hangs = hangs


def look(roots: Roots, host: Host, cards: Iterable[Card], given: Users = NOBODY) -> Survey:
    """Read what a plan for these cards is made from; Refusal if that fails. `given`: who was given a device."""
    with read_or_refused(roots.sys):
        processes, aliases = read_processes(roots.proc), read_aliases(roots.modules)
        return _survey(roots, host, cards, processes, aliases, _former(roots), given)


def _former(roots: Roots) -> tuple[Mapping[str, Former], Problem | None]:
    """Return what functions had before, and why that is not known, if so."""
    try:
        return roots.journal.read().former, None
    except Broken as error:
        return {}, error.problem


def refusals(
    sys: Path, devices: Mapping[str, Sequence[PCIAddress]], config: Config, *, roots: Roots
) -> Mapping[str, Hindrance | None]:
    """Return why each device (its functions, by any name) cannot be bound to vfio now, None if it can: the reason of
    `bind` for it alone, by the config and without errors of the state file. For Reader.ask; Refusal if the node cannot
    be read."""
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
                return hindrance(_survey(roots, host, cards, processes, aliases, ({}, None)), cards, config)
        except Refusal as error:
            return _cannot_be_bound(error)

    return {name: refusal(functions) for name, functions in devices.items()}


def _cannot_be_bound(error: Refusal) -> Hindrance:
    subject, wrong, fix = error.problem
    return Hindrance(f"cannot be bound to vfio: {subject} {wrong}", fix)


def _survey(
    roots: Roots,
    host: Host,
    cards: Iterable[Card],
    processes: Processes,
    aliases: Sequence[Alias],
    former: tuple[Mapping[str, Former], Problem | None],
    given: Users = NOBODY,
) -> Survey:
    known, trouble = former
    functions = [function for card in cards for function in card]
    return Survey(
        host=host,
        details={function.address: read_details(roots.sys, function.address) for function in functions},
        uses={
            function.address: (
                *given_to(given, function.address),
                *uses(roots.sys, roots.dev, processes, function),
            )
            for function in functions
        },
        modules={function.address: best_module(function, aliases) for function in functions},
        drivers=frozenset(names(roots.sys, _DRIVERS))
        | {function.driver for function in host.functions.values() if function.driver is not None},
        former=known,
        journal_trouble=trouble,
        unseen=processes.unseen,
    )


def rebind(
    roots: Roots,
    choose: Choose,
    decide: Decide,
    given: Given = lambda _: NOBODY,
    before: Callable[[Plan], None] = lambda plan: None,
) -> Plan:
    """Choose cards, decide on a plan for them and carry it out, while other binders of this node are kept out; return
    the plan. `before` is called just before the first write. Refusal if that fails."""
    with roots.journal.alone():
        plan, survey = planned(roots, choose, decide, given)
        if plan.moves:
            refuse_unseen(survey.unseen)
        before(plan)
        if cards := [survey.host.functions[move.address] for move in plan.moves if move.now.driver == nvml.DRIVER]:
            ask(nvml.keep, roots.sys, cards, proc=roots.proc, state=roots.state)
        carry_out(roots, plan, sysfs_writer(roots.sys))
    return plan


def planned(roots: Roots, choose: Choose, decide: Decide, given: Given) -> tuple[Plan, Survey]:
    """Return the plan for the chosen cards, and what it was made from."""
    host, _ = ask(read_host, roots.sys)
    cards, users = choose(host), given(host)
    # Details and parts of a function take its driver's lock.
    survey, _ = ask(lambda _: look(roots, host, cards, users), roots.sys)
    return decide(survey, cards), survey


def carry_out(roots: Roots, plan: Plan, write: Writer, *, driver_seconds: float = _DRIVER_SECONDS) -> None:
    """Do the plan's writes, and wait for each function to get its driver within `driver_seconds`.

    The former drivers are remembered before the first write and forgotten after the last. If a write or a driver fails,
    the moves are undone, the last first. Refusal says what failed, and what could not be undone: that stays remembered,
    so that unbind can give it back.
    """
    if not plan.moves:
        return
    file = roots.journal
    before = file.read()
    during = {**before.former, **{str(move.address): move.former for move in plan.moves if move.former is not None}}
    file.write(replace(before, former=during))
    for number, move in enumerate(plan.moves):
        try:
            do_writes(move.writes, write)
            _await_driver(roots.sys, move.address, move.target, driver_seconds)
        except Failed as failed:
            touched = plan.moves[: number + 1]
            stuck = _undo(roots.sys, touched, write, driver_seconds, hanging=move.address if failed.hangs else None)
            left = {str(address): during[str(address)] for address in stuck if str(address) in during}
            file.write(replace(before, former={**before.former, **left}))
            subject, wrong, fix = failed.problem
            reason = Problem(subject, f"{wrong}, and {_outcome(stuck)}", fix)
            raise NotRebound(*reason, reasons={move.address: reason}) from failed
    ended = {str(move.address) for move in plan.moves if move.former is None}
    file.write(replace(before, former={address: each for address, each in during.items() if address not in ended}))


def sysfs_writer(sys: Path, seconds: float = _WRITE_SECONDS) -> Writer:
    """Return a writer below `sys` that does each write in a child process.

    While a device is open its driver may keep the writer in the kernel, where no signal reaches it. After `seconds` the
    child is left behind.
    """

    def write(step: Write) -> None:
        forked(str(step), partial(_write, sys / step.path, step.text), within=seconds, goes_on=True).answer()

    return write


def _write(path: Path, text: str) -> None:
    let_go_of_standard_files()  # the lock stays open, and keeps others out while this hangs
    os.write(os.open(path, os.O_WRONLY), f"{text}\n".encode("ascii"))


def do_writes(steps: Iterable[Write], write: Writer) -> None:
    for step in steps:
        try:
            write(step)
        except Late as still:
            wrong = f"process {still.pid} hangs in the kernel until nobody has the device open any more"
            raise Failed(step, wrong, "end what has the device open", hangs=True) from still
        except NoAnswer as error:
            raise Failed(step, error.problem.wrong, error.problem.fix) from error
        except OSError as error:
            raise Failed(step, error.strerror or "failed", _ASK_THE_KERNEL) from error


def _await_driver(sys: Path, address: PCIAddress, target: DriverBinding | None, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            driver = link_name(sys, f"{DEVICES}/{address}/driver")
        except Unreadable as unreadable:
            raise Failed(unreadable.fault.path, unreadable.fault.wrong, _ASK_THE_KERNEL) from unreadable
        if target is None:
            if not is_vfio_driver(driver):
                return
        elif driver == target.driver:
            return
        if time.monotonic() >= deadline:
            break
        time.sleep(_LOOK_EVERY)
    if target is None:
        wrong = f"was given to {driver} again: its ID stands in vfio-pci.ids= or was written to new_id"
        raise Failed(address, wrong, "take its ID out of there")
    wrong = f"is on {driver or 'no driver'}, expected {target.driver or 'no driver'}"
    raise Failed(address, wrong, _ASK_THE_KERNEL)


def _undo(
    sys: Path, touched: Iterable[Move], write: Writer, seconds: float, *, hanging: PCIAddress | None
) -> dict[PCIAddress, str]:
    """Bring these functions back to where they were; return, by address, why that failed."""
    stuck: dict[PCIAddress, str] = {}
    for move in reversed(tuple(touched)):
        if move.address == hanging:
            # Reading its driver_override would hang as well: the kernel holds the device's lock.
            stuck[move.address] = "the kernel is still at it"
            continue
        try:
            driver = link_name(sys, f"{DEVICES}/{move.address}/driver")
            now = DriverBinding(driver, read_details(sys, move.address).driver_override)
            do_writes(move.undoing(now), write)
            _await_driver(sys, move.address, move.now, seconds)
        except (Failed, Unreadable) as error:
            stuck[move.address] = str(error)
    return stuck


def _outcome(stuck: dict[PCIAddress, str]) -> str:
    if not stuck:
        return "everything is as it was before"
    return "not undone: " + ", ".join(f"{address} ({why})" for address, why in sorted(stuck.items()))
