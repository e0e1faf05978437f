"""Cards that are cut, or could be: their parts, the users of the parts, and the parts that gpu-plugin made."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

from pci.address import PCIAddress
from pci.functions import is_gpu, is_vfio_driver
from pci.host import Function, Host
from pci.sysfs.attribute import names, text
from pci.sysfs.functions import DEVICES, MDEVS, read_host
from pci.sysfs.vgpus import cut_card, read_card
from pci.vgpus import CutCard
from plugin.cards.config import Config
from plugin.cards.vgpu_types import instance_of
from plugin.changes.engine import Failed, NodeChange, NodeIO
from plugin.changes.journal import Journal
from plugin.changes.processes import DeviceNumber, Processes
from plugin.changes.users import AskUsers, Name, Users
from plugin.sysfs_child import read_or_refused
from program.problem import Problem, summary

_DRIVERS = "bus/pci/drivers"
_NAMED = 3  # processes that have one file open


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The cards that were looked at, ascending; the users of their functions and mediated devices, by address or UUID;
    the journal of what gpu-plugin made; names of types by number; the drivers of the PCI bus. `unseen` says why users
    may be missing; None if none are."""

    cards: tuple[CutCard, ...]
    users: Mapping[str, str]
    journal: Journal
    types: Mapping[int, str]
    drivers: frozenset[str]
    unseen: Problem | None

    def all_used(self, by: str) -> "Survey":
        """Return the survey with the user `by` for every function and mediated device that has none."""
        functions = (str(function.address) for card in self.cards for function in card.functions)
        mdevs = (str(mdev.uuid) for card in self.cards for mdev in card.mdevs)
        return replace(self, users={**dict.fromkeys((*functions, *mdevs), by), **self.users})

    def use_of(self, card: CutCard) -> str | None:
        """Return which virtual function of the card is in use, and by whom; None if none is."""
        names = (str(function.address) for function in card.functions)
        return next((f"{name} is in use by {self.users[name]}" for name in names if name in self.users), None)


@dataclass(frozen=True, slots=True)
class VGPU:
    """An existing vGPU: its type's name as people write it (empty if unknown), its address or UUID, whether gpu-plugin
    made it, its user, and the change that removes it."""

    name: str
    where: PCIAddress | UUID
    ours: bool
    user: str | None
    removal: NodeChange


@dataclass(frozen=True, slots=True)
class CardChange(NodeChange):
    """A change of a card's parts."""

    card: PCIAddress

    @property
    def device(self) -> PCIAddress:
        return self.card

    def read(self, node: NodeIO) -> CutCard:
        """Read the card as it is now."""
        cut: CutCard = node.ask(read_card, node.sys, self.card)
        return cut


def look(
    sys: Path,
    config: Config,
    journal: Journal,
    processes: Callable[[], Processes],
    ask_users: AskUsers,
    *,
    every: bool = False,
) -> Survey:
    """Look at the cards that rules fit and those with parts that gpu-plugin made, or at every card that is or could be
    cut; Refusal if that fails. `ask_users` says who was given the host's devices."""
    host = read_host(sys)
    journal = still_there(host, journal)
    with read_or_refused(sys):
        cards = tuple(
            card
            for function in host.functions.values()
            if not function.is_virtual
            and (every or config.vgpus_of(function) is not None or _is_ours(host, function, journal))
            and (card := cut_card(sys, host, function))
            and (not every or card.places or (card.possible and is_gpu(function)))
        )
        opened = processes()
        users = dict(_users(sys, cards, opened, ask_users(host)))
        drivers = frozenset(names(sys, _DRIVERS))
    types = types_of(host, journal)
    return Survey(cards=cards, users=users, journal=journal, types=types, drivers=drivers, unseen=opened.unseen)


def still_there(host: Host, journal: Journal) -> Journal:
    """Return the journal without entries of things that do not exist: an interrupted call writes them before it makes
    the things. The entry of a card without a driver stays: sriov-manage unbinds the card."""
    now = {str(one.address): one.vgpu_type for one in host.functions.values()}
    cut = {str(one.physical_function) for one in host.functions.values()}
    cut |= {str(one.address) for one in host.functions.values() if one.driver is None}
    mdevs = {str(mdev.uuid) for mdev in host.mdevs}
    return replace(
        journal,
        types={address: one for address, one in journal.types.items() if now.get(address) == one.number},
        mdevs={uuid: parent for uuid, parent in journal.mdevs.items() if uuid in mdevs},
        functions={card: count for card, count in journal.functions.items() if card in cut},
    )


def types_of(host: Host, journal: Journal) -> Mapping[int, str]:
    """Return the names of vGPU types by number: also of those that no function can become any more."""
    return {**{one.number: one.name for one in journal.types.values()}, **host.vgpu_types}


def _is_ours(host: Host, card: Function, journal: Journal) -> bool:
    """Whether something of the card was made by gpu-plugin."""
    functions = {
        str(one.address) for one in host.functions.values() if card.address in (one.address, one.physical_function)
    }
    return not functions.isdisjoint(journal.ours)


def _users(sys: Path, cards: Iterable[CutCard], processes: Processes, users: Users) -> Iterator[tuple[str, str]]:
    for card in cards:
        things: list[tuple[Name, str, int | None]] = [
            (one.address, f"{DEVICES}/{one.address}", one.iommu_group) for one in (card.function, *card.functions)
        ]
        things += [(mdev.uuid, f"{MDEVS}/{mdev.uuid}", mdev.iommu_group) for mdev in card.mdevs]
        for name, entry, group in things:
            openers = [opener for number in _numbers(sys, entry, group) for opener in processes.openers.get(number, ())]
            if who := tuple(users.of([name]) or dict.fromkeys(openers)):
                yield str(name), summary(who, _NAMED)


def _numbers(sys: Path, entry: str, group: int | None) -> Iterator[DeviceNumber]:
    """Yield the numbers of the device files through which a guest opens a function or a mediated device: VFIO's file of
    the group and that of the device."""
    paths = [f"{entry}/vfio-dev/{name}/dev" for name in names(sys, f"{entry}/vfio-dev")]
    paths += [] if group is None else [f"class/vfio/{name}/dev" for name in (f"{group}", f"noiommu-{group}")]
    for path in paths:
        if number := re.fullmatch("([0-9]+):([0-9]+)", text(sys, path) or "", re.ASCII):
            yield DeviceNumber(False, int(number[1]), int(number[2]))


def is_whole(card: CutCard) -> bool:
    """Whether vfio has the card itself, so that a guest can have it whole."""
    return is_vfio_driver(card.function.driver)


def no_further(card: CutCard, name: str, can: Iterable[str]) -> Failed:
    """Return why the claim cannot have a vGPU of this type."""
    types = sorted({*can})
    if instance_of(name) is not None:
        fix = f"wait until one is given back, or {make_instance(card.address)}"
    else:
        fix = f"it can become {summary(types, 12)}" if types else "wait until its other vGPUs are given back"
    return Failed(card.address, f"can become no further vGPU of type {name}", fix)


def make_instance(card: PCIAddress) -> str:
    """Return the fix for a MIG-backed type that has no GPU instance."""
    return f"make one, of the type's profile in nvidia-smi vgpu -s -v: nvidia-smi mig -i {card} -cgi PROFILE -C"
