"""The vGPUs that claims can get from a node's cards. They are made when claimed (`when: claimed` in `vgpus` of the
config); until then each is only a type and a number."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from pci.host import Function, Host, MediatedDevice
from pci.memory import memory_of
from pci.slices import vgpu_names_of
from plugin.cards.config import Config
from plugin.cards.inventory import Device, by_config, mediated
from plugin.cards.names import PCIIDs
from plugin.cards.vgpu_types import plain, size_of, slug


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimableVGPU:
    """One of the vGPUs of a type that a card can have at once, with a number from 0. `example` is the device that it
    would become on the card's first virtual function, or as a mediated device of the first parent."""

    card: Function
    type: str
    number: int
    example: Device

    @property
    def name(self) -> str:
        """The device's name in a ResourceSlice, a DNS label: `vgpu-0000-41-00-0-l40s-24q-0`."""
        return f"{vgpu_names_of(self.card.address)}{slug(self.type)}-{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimableCard:
    """A card with vGPUs for claims, by size and type; `memory` in gigabytes; its virtual `functions`, ascending.

    `mediated`: its vGPUs are mediated devices, one on each virtual function, or any number on a card without these.
    """

    function: Function
    mixed_sizes: bool
    mediated: bool
    memory: int
    functions: tuple[Function, ...]
    vgpus: tuple[ClaimableVGPU, ...]

    @property
    def places(self) -> int:
        """The most vGPUs that the card can have, of whatever types."""
        return len(self.functions) or len(self.vgpus)


def claimable_cards(host: Host, config: Config, pci_ids: PCIIDs) -> tuple[ClaimableCard, ...]:
    """Return the cards whose vGPUs are made when claimed, ascending: cards with virtual functions on NVIDIA's driver,
    with the types that it has named since the plugin began, and the parents of its mediated devices."""
    return tuple(_cards(host, config, pci_ids))


def _cards(host: Host, config: Config, pci_ids: PCIIDs) -> Iterator[ClaimableCard]:
    for card in host.functions.values():
        rule = None if card.is_virtual else config.claimable(host, card)
        if rule is None:
            continue
        functions = tuple(
            one
            for one in host.functions.values()
            if one.physical_function == card.address and one.driver == "nvidia" and one.iommu_group is not None
        )
        parents = tuple(one for one in functions if one.address in host.mdev_types)
        is_parent = not functions and card.address in host.mdev_types
        if parents or is_parent:
            examples = _mediated(host, parents[0] if parents else card, config, pci_ids)
        else:
            examples = _virtual(host, functions, config, pci_ids)
        types = {plain(name): count for name, count in rule.types.items()}
        places = parents or functions
        vgpus = tuple(
            ClaimableVGPU(card=card, type=name, number=number, example=replace(example, is_of_claim=True))
            for name, example in sorted(examples.items(), key=lambda each: (size_of(each[0]) or 0, each[0]))
            if name in types and example.resource is not None and example.withheld is None
            for number in range(types[name] if is_parent else min(types[name], len(places)))
        )
        if vgpus:
            sold = memory_of(card, pci_ids.device(card.vendor_id, card.device_id) or "") or 0
            memory = max(sold, *((size_of(name) or 0) * count for name, count in types.items()))
            yield ClaimableCard(
                function=card,
                mixed_sizes=rule.mixed_sizes,
                mediated=bool(parents) or is_parent,
                memory=memory,
                functions=places,
                vgpus=vgpus,
            )


def _virtual(host: Host, functions: tuple[Function, ...], config: Config, pci_ids: PCIIDs) -> Mapping[str, Device]:
    """Return the first virtual function as a vGPU of each type, by the type's name as people write it."""
    devices = {
        plain(name): by_config(host, (replace(functions[0], vgpu_type=number),), config, pci_ids)
        for number, name in (host.vgpu_types.items() if functions else ())
    }
    return {name: device for name, device in devices.items() if device is not None}


def _mediated(host: Host, parent: Function, config: Config, pci_ids: PCIIDs) -> Mapping[str, Device]:
    """Return a mediated device of this parent of each type, by the type's name as people write it."""
    devices = {
        plain(name): mediated(host, MediatedDevice(UUID(int=0), name, parent.address, None, None), config, pci_ids)
        for name in host.mdev_types[parent.address]
    }
    return {name: device for name, device in devices.items() if device is not None}
