"""Which rule of the config a card has, and what the rule wants of its functions while vfio has them."""

from collections.abc import Mapping
from dataclasses import dataclass

from pci.address import PCIAddress
from pci.cards import Card
from pci.functions import is_gpu, is_integrated_gpu
from pci.host import Function, Host
from plugin.cards.config import Config, Rule


def fitting(host: Host, card: Card, config: Config) -> tuple[Rule, Function] | None:
    """Return the first rule of the config that fits a function of the card, and that function; None if no rule fits."""
    return next(
        ((rule, function) for rule in config.offer for function in card if rule.fits(function, host.vgpu_types)), None
    )


def is_left_to_the_node(host: Host, card: Card, lead: Function, config: Config) -> bool:
    """True if the card is the processor's own GPU and no rule of the config fits it: it stays the node's console."""
    return is_integrated_gpu(host, lead) and fitting(host, card, config) is None


@dataclass(frozen=True, slots=True)
class VFIOSettings:
    """What of a function is to be otherwise while vfio has it; None for as it is."""

    reset_methods: tuple[str, ...] | None = None
    d3cold_allowed: bool | None = None


#: Nothing is to be otherwise.
NOTHING = VFIOSettings()


def wanted_settings(host: Host, card: Card, config: Config) -> Mapping[PCIAddress, VFIOSettings]:
    """Return what the card's rule wants of its functions, and which reset of its lead; empty if it wants nothing."""
    rule, fits = fitting(host, card, config) or (None, None)
    if rule is None or fits is None or (rule.reset_method is None and rule.d3cold_allowed is None):
        return {}
    methods = None if rule.reset_method is None else tuple(rule.reset_method)
    lead = next(filter(is_gpu, card), fits)
    return {
        function.address: VFIOSettings(methods if function == lead else None, rule.d3cold_allowed) for function in card
    }
