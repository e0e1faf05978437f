"""The vGPUs that claims can have of a node's cards: they are made when they are claimed (`when: claimed` in `vgpus` of
the config), so each is only a type and a number until then."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pci.host import Function, Host
from pci.memory import memory_of
from plugin.cards.config import Config
from plugin.cards.inventory import Device, by_config
from plugin.cards.names import PCIIDs
from plugin.cards.vgpu_types import plain, size_of, slug


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimableVGPU:
    """One of the vGPUs of a type that a card can have at once, with a number from 0. `example` is the device that it
    becomes, if it is made of the card's first virtual function."""

    card: Function
    type: str
    number: int
    example: Device

    @property
    def name(self) -> str:
        """The device's name in a ResourceSlice, a DNS label: `vgpu-0000-41-00-0-l40s-24q-0`."""
        card = str(self.card.address).replace(":", "-").replace(".", "-")
        return f"{PREFIX}{card}-{slug(self.type)}-{self.number}"


#: What names of these devices begin with.
PREFIX = "vgpu-"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimableCard:
    """A card with vGPUs for claims, by size and type; `memory` in gigabytes; its virtual `functions`, ascending."""

    function: Function
    mixed_sizes: bool
    memory: int
    functions: tuple[Function, ...]
    vgpus: tuple[ClaimableVGPU, ...]


def claimable_cards(host: Host, config: Config, pci_ids: PCIIDs) -> tuple[ClaimableCard, ...]:
    """Return the cards whose vGPUs are made when claimed, ascending: those whose virtual functions NVIDIA's driver has,
    with the types that it has named since the plugin began."""
    return tuple(_cards(host, config, pci_ids))


def _cards(host: Host, config: Config, pci_ids: PCIIDs) -> Iterator[ClaimableCard]:
    numbers = {plain(name): number for number, name in host.vgpu_types.items()}
    for card in host.functions.values():
        rule = None if card.is_virtual else config.claimable(host, card)
        functions = tuple(
            one
            for one in host.functions.values()
            if one.physical_function == card.address and one.driver == "nvidia" and one.iommu_group is not None
        )
        if rule is None or not functions:
            continue
        types = {plain(name): count for name, count in rule.types.items()}
        vgpus = []
        for name in sorted(types, key=lambda name: (size_of(name), name)):
            if name not in numbers:
                continue
            example = by_config(host, (replace(functions[0], vgpu_type=numbers[name]),), config, pci_ids)
            if example is None or example.resource is None or example.withheld is not None:
                continue
            example = replace(example, is_of_claim=True)
            vgpus += [
                ClaimableVGPU(card=card, type=name, number=number, example=example)
                for number in range(min(types[name], len(functions)))
            ]
        if vgpus:
            sold = memory_of(card, pci_ids.device(card.vendor_id, card.device_id) or "") or 0
            memory = max(sold, *((size_of(name) or 0) * count for name, count in types.items()))
            yield ClaimableCard(
                function=card,
                mixed_sizes=rule.mixed_sizes,
                memory=memory,
                functions=functions,
                vgpus=tuple(vgpus),
            )
