"""What is read of cards, and of the node, before a function gets another driver."""

from collections.abc import Mapping
from dataclasses import dataclass

from pci.address import PCIAddress
from pci.host import Details, Function, Host
from plugin.binding.moves import DriverBinding
from plugin.changes.journal import Former
from plugin.changes.uses import Use
from program.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What a plan is made from.

    `details`, `uses` and `modules` (of the vfio drivers) have every function of the cards. `drivers` are all drivers of
    the PCI bus. `former` has what functions had before, by address, `journal_trouble` why
    that is not known. `unseen` says why
    uses may be missing. Both are None if nothing is missing.
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
        """Return what the function had before vfio had it; None if that is not remembered, or another card's."""
        former = self.former.get(str(function.address))
        return None if former is None or former.id != function.pci_id else former

    def former_binding(self, function: Function) -> DriverBinding | None:
        former = self.former_of(function)
        return None if former is None else DriverBinding(former.driver, former.override)

    def vfio_driver(self, function: Function) -> str | None:
        """Return the name of the function's vfio driver if it is loaded. Drivers are called like their modules, with
        underscores or with hyphens: vfio-pci, nvgrace_gpu_vfio_pci."""
        module = self.modules[function.address]
        return next((name for name in (module, module.replace("_", "-")) if name in self.drivers), None)
