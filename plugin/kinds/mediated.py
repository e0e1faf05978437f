"""Mediated devices: vGPUs of NVIDIA's older framework and of i915. Each has a type and a UUID, and is made of a card or
of one of its virtual functions."""

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from pci.address import PCIAddress
from pci.host import MediatedDevice
from pci.sysfs.functions import DEVICES, MDEV_TYPES, MDEVS
from pci.vgpus import CutCard
from plugin.cards.vgpu_types import plain
from plugin.changes.engine import Failed, NodeChange, NodeIO, Write, do
from plugin.changes.journal import Journal
from plugin.kinds.cut import VGPU, CardChange, Survey, no_further

_LOOKS = 20  # for the kernel's delayed changes
_ASK_THE_KERNEL = "see the kernel's log (dmesg)"


def there(survey: Survey, card: CutCard) -> Iterator[VGPU]:
    """Yield the mediated devices of the card and its functions, by UUID."""
    for mdev in card.mdevs:
        uuid = str(mdev.uuid)
        removal = Remove(card.address, mdev.uuid, mdev.type_name)
        yield VGPU(plain(mdev.type_name), mdev.uuid, uuid in survey.journal.mdevs, survey.users.get(uuid), removal)


def can_become(card: CutCard) -> Iterator[str]:
    """Yield the names of the types of which one more can be made now, as people write them."""
    return (plain(kind.name) for place in card.places for kind in place.mdev_types if kind.available)


def one_more(card: CutCard, name: str, uuid: UUID) -> "Create | None":
    """Return the change that makes one more mediated device of this type; None if that cannot be done."""
    for place in card.places:
        for kind in place.mdev_types:
            if plain(kind.name) == name and kind.available:
                return Create(card.address, place.function.address, kind.directory, name, uuid)
    return None


def for_claim(node: NodeIO, uuid: UUID, name: str, card: CutCard | None) -> NodeChange | None:
    """Return the change that makes the mediated device of a claim, None if an earlier call made it; Failed if it cannot
    be made."""
    if card is None:
        raise Failed(uuid, "can be made no more: its card is gone", "delete the pod, to have its claim allocated anew")
    if (mdev := _mdev(card, uuid)) is None:
        if (create := one_more(card, name, uuid)) is None:
            raise no_further(card, name, can_become(card))
        return create
    if str(uuid) in node.journal.read().mdevs and plain(mdev.type_name) == name:
        return None
    raise Failed(uuid, f"is there already, of type {plain(mdev.type_name)}", "remove it, unless a guest has it")


def no_longer_claimed(node: NodeIO, uuid: UUID, card: CutCard | None) -> NodeChange | None:
    """Return the change that removes the mediated device of a claim; None if it is not ours, or gone."""
    if (parent := node.journal.read().mdevs.get(str(uuid))) is None:
        return None
    mdev = None if card is None else _mdev(card, uuid)
    if card is None or mdev is None or str(mdev.parent) != parent:
        # Somebody removed it, or it never existed.
        node.journal.change(lambda journal: journal.without("mdevs", str(uuid)))
        return None
    return Remove(card.address, uuid, mdev.type_name)


def _mdev(card: CutCard, uuid: UUID) -> MediatedDevice | None:
    return next((each for each in card.mdevs if each.uuid == uuid), None)


@dataclass(frozen=True, slots=True)
class Create(CardChange):
    """The making of a mediated device of the function `parent`; `directory` is its type's in sysfs."""

    parent: PCIAddress
    directory: str
    name: str
    uuid: UUID

    def __str__(self) -> str:
        return f"make the mediated device {self.uuid} of type {self.name}"

    def before(self, journal: Journal) -> Journal:
        return journal.with_entry("mdevs", str(self.uuid), str(self.parent))

    def do(self, node: NodeIO) -> tuple[NodeChange, ...]:
        path = f"{DEVICES}/{self.parent}/{MDEV_TYPES}/{self.directory}/create"
        node.do_writes([Write(path, str(self.uuid))])
        if not node.awaited(lambda: _mdev(self.read(node), self.uuid) is not None, _LOOKS):
            raise Failed(self.parent, f"has not made the mediated device {self.uuid}", _ASK_THE_KERNEL)
        return (Remove(self.card, self.uuid, self.name),)

    def undone(self, journal: Journal) -> Journal:
        return journal.without("mdevs", str(self.uuid))


@dataclass(frozen=True, slots=True)
class Remove(CardChange):
    """The removal of a mediated device, if it exists."""

    uuid: UUID
    name: str

    def __str__(self) -> str:
        return f"remove the mediated device {self.uuid} of type {plain(self.name)}"

    def is_needed(self, node: NodeIO) -> bool:
        node.refuse_use(str(self.uuid))
        return True

    def do(self, node: NodeIO) -> tuple[NodeChange, ...]:
        if _mdev(self.read(node), self.uuid) is not None:
            node.do_writes([Write(f"{MDEVS}/{self.uuid}/remove", "1")])
            if not node.awaited(lambda: _mdev(self.read(node), self.uuid) is None, _LOOKS):
                raise Failed(self.uuid, "is still there after its removal", _ASK_THE_KERNEL)
        return (_Again(self.card, self.uuid, plain(self.name)),)

    def after(self, journal: Journal) -> Journal:
        return journal.without("mdevs", str(self.uuid))


@dataclass(frozen=True, slots=True)
class _Again(CardChange):
    """The making again of a removed mediated device, wherever its type has a place."""

    uuid: UUID
    name: str

    def do(self, node: NodeIO) -> tuple[NodeChange, ...]:
        card = self.read(node)
        if (create := one_more(card, self.name, self.uuid)) is None:
            raise no_further(card, self.name, can_become(card))
        return do(node, create)
