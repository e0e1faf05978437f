"""NVIDIA's vGPUs on virtual functions, of vGPU 17 and later on Linux 6.8: writing a type to a function makes it a vGPU,
and NVIDIA's script turns all functions of a card on and off.

sriov-manage fails while a client of NVML holds the driver's unbind lock, and too early after a boot: both pass.
"""

import errno
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from pci.address import PCIAddress
from pci.sysfs.functions import DEVICES, VGPU_TYPE
from pci.vendors import NVIDIA
from pci.vgpus import CutCard
from plugin.cards.vgpu_types import instance_of, plain
from plugin.changes.engine import Failed, NodeChange, NodeIO, Wedged, Write
from plugin.changes.journal import Journal, VGPUType
from plugin.kinds.cut import VGPU, CardChange, Survey, make_instance, no_further
from plugin.kinds.drivers import PROBE
from program.errors import Refusal
from program.problem import Problem, summary

DRIVER = "nvidia"

_TRIES = 5
_LOOKS = 20  # for the kernel's delayed changes
_LOOKS_AFTER_FAILURE = 4
_END_NVML = "end what asks NVML for the cards, and see the kernel's log (dmesg)"


def there(survey: Survey, card: CutCard) -> Iterator[VGPU]:
    """Yield the card's functions that are vGPUs, ascending."""
    for function in card.functions:
        if (number := function.vgpu_type) is not None:
            address = str(function.address)
            ours, name = survey.journal.types.get(address), survey.types.get(number, "")
            is_ours = ours is not None and ours.number == number
            removal = Clear(card.address, function.address, VGPUType(number, name))
            yield VGPU(plain(name), function.address, is_ours, survey.users.get(address), removal)


def can_become(card: CutCard) -> Iterator[str]:
    """Yield the names of the types of which one more can be made now, as people write them."""
    for place in card.places:
        if place.function.vgpu_type is None:
            yield from map(plain, place.creatable.values())


def one_more(card: CutCard, name: str) -> "Become | None":
    """Return the change that makes one more vGPU of the type with this name; None if that cannot be done."""
    for place in card.places:
        if place.takes_type and place.function.vgpu_type is None:
            for number, listed_name in place.creatable.items():
                if plain(listed_name) == name:
                    return Become(card.address, place.function.address, VGPUType(number, listed_name))
    return None


def turned_on(card: CutCard) -> "TurnOn | Problem | None":
    """Return the change that gives the card functions of which vGPUs can be made, or why there is none; None if it has
    some."""
    if card.places:
        return None
    if card.function.vendor_id != NVIDIA or card.function.driver != DRIVER or not card.possible or card.functions:
        driver = card.function.driver or "no driver"
        functions = f" with {len(card.functions)} virtual functions" if card.functions else ""
        wrong = f"is on {driver}{functions}, and has neither a list of vGPU types nor of mediated devices"
        return Problem(str(card.address), wrong, "install and load the driver that makes vGPUs")
    return TurnOn(card.address, card.possible)


def unfinished(survey: Survey, card: CutCard) -> tuple[Sequence[NodeChange], CutCard]:
    """Return the changes that repair what an interrupted call left, and the card after them."""
    is_ours = str(card.address) in survey.journal.functions
    if is_ours and card.function.driver is None and card.function.vendor_id == NVIDIA:
        return [Rebind(card.address)], replace(card, function=replace(card.function, driver=DRIVER))
    return [], card


def given_back(survey: Survey, card: CutCard) -> Iterator[NodeChange | Problem]:
    """Yield the change that turns off the card's functions, which gpu-plugin made; a problem if one is in use."""
    if (reason := survey.use_of(card)) is not None:
        wrong = f"has virtual functions for which the config has no place: {reason}"
        yield Problem(str(card.address), wrong, "apply again when that has ended")
    else:
        yield TurnOff(card.address)


def for_claim(node: NodeIO, function: PCIAddress, name: str, card: CutCard | None) -> NodeChange | None:
    """Return the change that makes a vGPU of type `name` of a function of the card, None if an earlier call made it;
    Failed if the function cannot become one."""
    place = next((one for one in card.places if one.function.address == function), None) if card is not None else None
    if card is None or place is None or not place.takes_type:
        raise Failed(function, "can become no vGPU any more", "gpu-plugin vgpus apply turns on virtual functions")
    if (now := place.function.vgpu_type) is not None:
        ours = node.journal.read().types.get(str(function))
        if ours is not None and ours.number == now and plain(ours.name) == name:
            return None
        raise Failed(function, f"has become a vGPU of type {now} meanwhile", "another one is taken for the claim")
    for number, listed_name in place.creatable.items():
        if plain(listed_name) == name:
            return Become(card.address, function, VGPUType(number, listed_name))
    raise no_further(card, name, can_become(card))


def no_longer_claimed(node: NodeIO, function: PCIAddress, card: CutCard | None) -> NodeChange | None:
    """Return the change that removes a claim's vGPU from a function; None if it is not ours, or gone."""
    ours = node.journal.read().types.get(str(function))
    if ours is None:
        return None
    now = None if card is None else _type_of(card, function)
    if card is None or now != ours.number:
        # Its present vGPU, if any, is not ours.
        node.journal.change(lambda journal: journal.without("types", str(function)))
        return None
    return Clear(card.address, function, ours)


def _type_of(card: CutCard, function: PCIAddress) -> int | None:
    return next((one.vgpu_type for one in card.functions if one.address == function), None)


@dataclass(frozen=True, slots=True)
class TurnOn(CardChange):
    """The making of all virtual functions of the card by NVIDIA's sriov-manage: the kernel driver refuses a write."""

    possible: int

    def __str__(self) -> str:
        return "turn on its virtual functions (sriov-manage -e)"

    def is_needed(self, node: NodeIO) -> bool:
        return not self.read(node).functions  # otherwise somebody else made them meanwhile

    def before(self, journal: Journal) -> Journal:
        return journal.with_entry("functions", str(self.card), self.possible)

    def do(self, node: NodeIO) -> tuple[NodeChange, ...]:
        try:
            failure = _called(self, node, "-e", lambda now: bool(now.functions) and bool(now.places))
        except Refusal as error:
            raise Failed(*error.problem) from error
        if failure is None:
            return (TurnOff(self.card),)
        wrong = f"has no virtual functions of which vGPUs can be made after {_TRIES} calls of sriov-manage -e{failure}"
        raise Failed(self.card, wrong, _END_NVML, left="they are there" if self.read(node).functions else "")

    def undone(self, journal: Journal) -> Journal:
        return journal.without("functions", str(self.card))


@dataclass(frozen=True, slots=True)
class TurnOff(CardChange):
    def __str__(self) -> str:
        return "turn off its virtual functions (sriov-manage -d)"

    def is_needed(self, node: NodeIO) -> bool:
        now = self.read(node)
        users = [str(one.address) for one in now.functions if one.vgpu_type or node.user(str(one.address)) is not None]
        users += [str(mdev.uuid) for mdev in now.mdevs]
        if users:
            wrong = f"its virtual functions are in use: {summary(users)}"
            raise Failed(self.card, wrong, "apply again when that has ended")
        return True

    def do(self, node: NodeIO) -> tuple[NodeChange, ...]:
        failure = _called(self, node, "-d", lambda now: not now.functions)
        if failure is not None:
            wrong = f"has virtual functions after {_TRIES} calls of sriov-manage -d{failure}"
            raise Failed(self.card, wrong, _END_NVML)
        return (TurnOn(self.card, self.read(node).possible),)

    def after(self, journal: Journal) -> Journal:
        return journal.without("functions", str(self.card))


def _called(change: CardChange, node: NodeIO, flag: str, is_so: Callable[[CutCard], bool]) -> str | None:
    """Call sriov-manage a few times until `is_so` holds for the card. Return None then, otherwise its last message."""
    failure = ""
    for _ in range(_TRIES):
        looks = _LOOKS
        try:
            node.run("sriov-manage", flag, str(change.card))
        except Failed as failed:
            failure, looks = f": {failed.problem.wrong}", _LOOKS_AFTER_FAILURE
        if node.awaited(lambda: is_so(change.read(node)), looks):
            return None
        if change.read(node).function.driver is None:
            # The script unbinds the card, and may leave it so.
            try:
                node.do_writes([Write(PROBE, str(change.card))])
            except Wedged:
                raise
            except Failed as failed:
                failure = f": {failed}"
    return failure


@dataclass(frozen=True, slots=True)
class Rebind(CardChange):
    """The return of the card to its driver: a call was interrupted while sriov-manage had unbound the card."""

    def __str__(self) -> str:
        return "give it back to its driver"

    def do(self, node: NodeIO) -> tuple[NodeChange, ...]:
        node.do_writes([Write(PROBE, str(self.card))])
        if not node.awaited(lambda: self.read(node).function.driver is not None, _LOOKS):
            wrong = "has no driver, and none takes it"
            raise Failed(self.card, wrong, "load its driver, and see the kernel's log (dmesg)")
        if not self.read(node).functions:
            node.journal.change(lambda journal: journal.without("functions", str(self.card)))
        return ()


@dataclass(frozen=True, slots=True)
class Mix(CardChange):
    """The mode in which the card's vGPUs can be of several sizes, set while it has none. Only the exit code of
    nvidia-smi shows success. If the driver refuses a second size later, all changes of the card are undone."""

    on: bool = True

    def __str__(self) -> str:
        return "allow vGPUs of several sizes (nvidia-smi vgpu -shm 1)"

    def do(self, node: NodeIO) -> tuple[NodeChange, ...]:
        node.run("nvidia-smi", "vgpu", "-shm", str(int(self.on)), "-i", str(self.card))
        return (Mix(self.card, not self.on),)


@dataclass(frozen=True, slots=True)
class _TypeChange(CardChange):
    function: PCIAddress
    type: VGPUType

    def now(self, node: NodeIO) -> int | None:
        return _type_of(self.read(node), self.function)

    def write(self, node: NodeIO, number: int) -> None:
        node.do_writes([Write(f"{DEVICES}/{self.function}/{VGPU_TYPE}", str(number))])
        if (now := self.now(node)) != (number or None):
            wrong = f"was told to be of type {number}, and is of type {now or 0}"
            fix = "see the driver's log (dmesg, nvidia-vgpu-mgr); MIG's types need a GPU instance"
            raise Failed(self.function, wrong, fix)


@dataclass(frozen=True, slots=True)
class Become(_TypeChange):
    """The making of a vGPU of a virtual function that is none."""

    def __str__(self) -> str:
        return f"make a vGPU of type {plain(self.type.name)} on {self.function}"

    def is_needed(self, node: NodeIO) -> bool:
        if (now := self.now(node)) is not None:
            raise Failed(self.function, f"is of type {now} already", "apply again")
        return True

    def before(self, journal: Journal) -> Journal:
        return journal.with_entry("types", str(self.function), self.type)

    def do(self, node: NodeIO) -> tuple[NodeChange, ...]:
        try:
            self.write(node, self.type.number)
        except Failed as failed:
            cause = failed.__cause__
            if isinstance(cause, OSError) and cause.errno == errno.EIO and instance_of(self.type.name):
                wrong = f"has no GPU instance for a vGPU of type {plain(self.type.name)}"
                raise Failed(self.card, wrong, make_instance(self.card)) from failed
            raise
        return (Clear(self.card, self.function, self.type),)

    def undone(self, journal: Journal) -> Journal:
        return journal.without("types", str(self.function))


@dataclass(frozen=True, slots=True)
class Clear(_TypeChange):
    """The removal of the vGPU of a virtual function."""

    def __str__(self) -> str:
        return f"remove the vGPU of type {plain(self.type.name)} on {self.function}"

    def is_needed(self, node: NodeIO) -> bool:
        node.refuse_use(str(self.function))
        if (now := self.now(node)) not in (None, self.type.number):
            raise Failed(self.function, f"has become type {now} meanwhile", "apply again")
        return True

    def do(self, node: NodeIO) -> tuple[NodeChange, ...]:
        if self.now(node) is not None:
            self.write(node, 0)
        return (Become(self.card, self.function, self.type),)

    def after(self, journal: Journal) -> Journal:
        return journal.without("types", str(self.function))
