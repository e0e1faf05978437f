"""The config's rule for a card, and the settings that it wants of the card's functions while vfio has them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pci.address import PCIAddress
from pci.cards import Card, cards_of, part_of
from pci.functions import is_gpu, is_integrated_gpu
from pci.host import Function, Host
from plugin.cards.config import Config, Rule


def fitting(host: Host, card: Card, config: Config) -> tuple[Rule, Function] | None:
    """Return the first rule of the config that fits a function of the card, and that function; None if no rule fits."""
    return next(
        ((rule, function) for rule in config.offer for function in card if rule.fits(function, host.vgpu_types)), None
    )


def cards_by_rules(host: Host, config: Config) -> tuple[Card, ...]:
    """Return the host's cards, ascending, as the config divides them: a part of a card with IOMMU groups of its own is
    a card by itself if another rule than the GPU's fits it."""
    cards = (card for whole in cards_of(host) for card in _apart(host, whole, config))
    return tuple(sorted(cards, key=lambda card: card[0].address))


def _apart(host: Host, card: Card, config: Config) -> Iterator[Card]:
    first = part_of(host, card[0].address)
    parts = dict.fromkeys(part_of(host, function.address) for function in card if function not in first)
    rule = fitting(host, first, config) if parts else None
    alone = [
        part
        for part in parts
        if part[0].iommu_group != first[0].iommu_group
        and (own := fitting(host, part, config)) is not None
        and (rule is None or own[0] is not rule[0])
    ]
    yield tuple(function for function in card if not any(function in part for part in alone))
    yield from alone


def is_left_to_the_node(host: Host, card: Card, lead: Function, config: Config) -> bool:
    """True if the card is the processor's own GPU and no rule of the config fits it: it stays the node's console."""
    return is_integrated_gpu(host, lead) and fitting(host, card, config) is None


@dataclass(frozen=True, slots=True)
class VFIOSettings:
    """Settings of a function while vfio has it; None leaves a setting as it is."""

    reset_methods: tuple[str, ...] | None = None
    d3cold_allowed: bool | None = None


#: All settings stay as they are.
NOTHING = VFIOSettings()


def wanted_settings(host: Host, card: Card, config: Config) -> Mapping[PCIAddress, VFIOSettings]:
    """Return the settings that the card's rules want of its functions, resets only of a lead; empty if none."""
    return {
        address: settings
        for one in _apart(host, card, config)
        for address, settings in _settings_by_rule(host, one, config).items()
    }


def _settings_by_rule(host: Host, card: Card, config: Config) -> Mapping[PCIAddress, VFIOSettings]:
    rule, fits = fitting(host, card, config) or (None, None)
    if rule is None or fits is None or (rule.reset_method is None and rule.d3cold_allowed is None):
        return {}
    methods = None if rule.reset_method is None else tuple(rule.reset_method)
    lead = next(filter(is_gpu, card), fits)
    return {
        function.address: VFIOSettings(methods if function == lead else None, rule.d3cold_allowed) for function in card
    }
