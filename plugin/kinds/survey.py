"""The facts about cards and the node that are read before a function gets another driver."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pci.address import PCIAddress
from pci.cards import Card
from pci.host import Details, Function, Host
from pci.sysfs.attribute import names
from pci.sysfs.details import read_details
from plugin.changes.engine import Roots
from plugin.changes.journal import Former
from plugin.changes.processes import Processes, read_processes
from plugin.changes.users import Users
from plugin.changes.uses import Use, given_to, uses
from plugin.kinds.drivers import DriverBinding
from plugin.kinds.modalias import Alias, best_module, read_aliases
from plugin.state_files import Broken
from plugin.sysfs_child import read_or_refused
from program.problem import Problem

_DRIVERS = "bus/pci/drivers"


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The facts that a plan is made from.

    `details`, `uses` and `modules` (of the vfio drivers) have every function of the cards. `drivers` are all drivers of
    the PCI bus. `former` has the functions' former drivers and settings, by address; `journal_trouble` says why they
    are unknown, `unseen` why uses may be missing: both are None if nothing is missing.
    """

    host: Host
    details: Mapping[PCIAddress, Details]
    uses: Mapping[PCIAddress, tuple[Use, ...]]
    modules: Mapping[PCIAddress, str]
    drivers: frozenset[str]
    former: Mapping[str, Former]
    journal_trouble: Problem | None
    unseen: Problem | None

    def binding(self, function: Function) -> DriverBinding:
        return DriverBinding(function.driver, self.details[function.address].driver_override)

    def former_of(self, function: Function) -> Former | None:
        """Return the function's driver and settings before vfio had it; None if not remembered, or another card's."""
        former = self.former.get(str(function.address))
        return None if former is None or former.id != function.pci_id else former

    def former_binding(self, function: Function) -> DriverBinding | None:
        former = self.former_of(function)
        return None if former is None else DriverBinding(former.driver, former.override)

    def is_half_given_back(self, function: Function) -> bool:
        """Return whether an unbind was interrupted: vfio has released the function, which is not yet as before."""
        now, former = self.binding(function), self.former_binding(function)
        return former is not None and not now.is_vfio and now != former and now.driver in (None, former.driver)

    def vfio_driver(self, function: Function) -> str | None:
        """Return the name of the function's vfio driver if it is loaded. Drivers are called like their modules, with
        underscores or with hyphens: vfio-pci, nvgrace_gpu_vfio_pci."""
        module = self.modules[function.address]
        return next((name for name in (module, module.replace("_", "-")) if name in self.drivers), None)


def look(roots: Roots, host: Host, cards: Iterable[Card], users: Users) -> Survey:
    """Read the facts that a plan for these cards needs; Refusal if that fails. `users`: who was given a device."""
    with read_or_refused(roots.sys):
        processes, aliases = read_processes(roots.proc), read_aliases(roots.modules)
        return survey_of(roots, host, cards, processes, aliases, _former(roots), users)


def _former(roots: Roots) -> tuple[Mapping[str, Former], Problem | None]:
    """Return the functions' former drivers and settings, and a problem if they are unknown."""
    try:
        return roots.journal.read().former, None
    except Broken as error:
        return {}, error.problem


def survey_of(
    roots: Roots,
    host: Host,
    cards: Iterable[Card],
    processes: Processes,
    aliases: Sequence[Alias],
    former: tuple[Mapping[str, Former], Problem | None],
    users: Users,
) -> Survey:
    known, trouble = former
    functions = [function for card in cards for function in card]
    return Survey(
        host=host,
        details={function.address: read_details(roots.sys, function.address) for function in functions},
        uses={
            function.address: (
                *given_to(users, function.address),
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
