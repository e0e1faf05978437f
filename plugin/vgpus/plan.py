"""The steps from what cards are cut into to what the config asks for: values to values, nothing is read or written.

What is there counts, whoever made it. Only what is ours and in nobody's use is taken away, and that first: vGPUs of one
size keep others from being made. Which function a new vGPU gets, the step decides when its turn comes: the types that a
function can become change with every one that is made.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias
from uuid import UUID

from pci.address import PCIAddress
from pci.functions import is_vfio_driver
from pci.vendors import NVIDIA
from pci.vgpus import CutCard
from plugin.cards.config import Config
from plugin.cards.vgpu_rules import Quota, VGPURule, When
from plugin.cards.vgpu_types import instance_of, plain
from plugin.changes.journal import VGPUType
from plugin.vgpus.survey import Survey, is_whole
from program.problem import Problem, listed

#: The drivers that give a virtual function to a guest, the better one first.
_VFIO_DRIVERS = ("xe-vfio-pci", "vfio-pci")
_GIM = "gim"
_NVIDIA = "nvidia"


@dataclass(frozen=True, slots=True)
class TurnOn:
    """NVIDIA's sriov-manage makes all virtual functions of the card: its kernel driver refuses a write."""

    card: PCIAddress

    def __str__(self) -> str:
        return "turn on its virtual functions (sriov-manage -e)"


@dataclass(frozen=True, slots=True)
class TurnOff:
    card: PCIAddress

    def __str__(self) -> str:
        return "turn off its virtual functions (sriov-manage -d)"


@dataclass(frozen=True, slots=True)
class Rebind:
    """The card gets its driver again: a call was ended while sriov-manage had unbound it."""

    card: PCIAddress

    def __str__(self) -> str:
        return "give it back to its driver"


@dataclass(frozen=True, slots=True)
class Mix:
    """The card goes into the mode in which its vGPUs can be of several sizes, while it has none."""

    card: PCIAddress

    def __str__(self) -> str:
        return "allow vGPUs of several sizes (nvidia-smi vgpu -shm 1)"


@dataclass(frozen=True, slots=True)
class Make:
    """A vGPU or a mediated device of the type with this name, as people write it."""

    card: PCIAddress
    name: str

    def __str__(self) -> str:
        return f"make a vGPU of type {self.name}"


@dataclass(frozen=True, slots=True)
class Clear:
    """A virtual function is no vGPU any more."""

    card: PCIAddress
    function: PCIAddress
    type: VGPUType

    def __str__(self) -> str:
        return f"remove the vGPU of type {plain(self.type.name)} on {self.function}"


@dataclass(frozen=True, slots=True)
class Remove:
    """A mediated device is removed."""

    card: PCIAddress
    uuid: UUID
    name: str

    def __str__(self) -> str:
        return f"remove the mediated device {self.uuid} of type {plain(self.name)}"


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether the kernel's drivers take new virtual functions of the card."""

    card: PCIAddress
    on: bool

    def __str__(self) -> str:
        return (
            f"{'let' if self.on else 'keep'} the host's drivers {'take' if self.on else 'from'} new virtual functions"
        )


@dataclass(frozen=True, slots=True)
class Grant:
    """What xe gives the virtual function with this number, from 1."""

    card: PCIAddress
    function: int
    quota: Quota
    value: int

    def __str__(self) -> str:
        return f"give virtual function {self.function} {self.quota} {self.value}"


@dataclass(frozen=True, slots=True)
class Count:
    """The card gets so many virtual functions."""

    card: PCIAddress
    now: int
    count: int

    def __str__(self) -> str:
        return f"{self.now} virtual functions -> {self.count}"


@dataclass(frozen=True, slots=True)
class Give:
    """The card's virtual functions that have no driver get this one."""

    card: PCIAddress
    driver: str

    def __str__(self) -> str:
        return f"give its virtual functions to {self.driver}"


Step: TypeAlias = TurnOn | TurnOff | Rebind | Mix | Make | Clear | Remove | Probe | Grant | Count | Give


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of each card, in order, and why something of the config will not be there."""

    steps: Mapping[PCIAddress, tuple[Step, ...]]
    problems: tuple[Problem, ...]


def plan(survey: Survey, config: Config) -> Plan:
    """Return the difference between what cards are cut into and what the config asks for."""
    steps: dict[PCIAddress, tuple[Step, ...]] = {}
    problems: list[Problem] = []
    for card in survey.cards:
        planned = tuple(_planned(survey, card, config.vgpus_of(card.function)))
        problems += [one for one in planned if isinstance(one, Problem)]
        if found := tuple(one for one in planned if not isinstance(one, Problem)):
            steps[card.address] = found
    return Plan(steps, tuple(problems))


def _planned(survey: Survey, card: CutCard, rule: VGPURule | None) -> Iterator[Step | Problem]:
    unfinished, card = _unfinished(survey, card)
    yield from unfinished
    if rule is not None and is_whole(card):
        wrong = f"is on {card.function.driver}, for guests that get it whole, and the config cuts it into vGPUs"
        yield Problem(str(card.address), wrong, f"gpu-plugin unbind {card.address}, or leave it out of vgpus")
    elif rule is not None and rule.when is When.CLAIMED:
        yield from _claimable(survey, card, rule)
    elif rule is not None and rule.functions is not None:
        yield from _functions(survey, card, rule.functions, rule.quota)
    else:
        yield from _types(survey, card, {} if rule is None else rule.types, mix=rule is not None and rule.mixed_sizes)


def _unfinished(survey: Survey, card: CutCard) -> tuple[Sequence[Step], CutCard]:
    """Return the steps that put right what a call that was ended has left, and the card as it is then."""
    name = str(card.address)
    if name in survey.journal.functions and card.function.driver is None and card.function.vendor_id == NVIDIA:
        return [Rebind(card.address)], replace(card, function=replace(card.function, driver=_NVIDIA))
    if name not in survey.journal.unprobed:
        return [], card
    quotas = {} if card.functions else card.quotas
    steps = [
        Grant(card.address, function, Quota(file), 0)
        for function, values in quotas.items()
        for file, value in values.items()
        if value
    ]
    return [*steps, Probe(card.address, on=True)], replace(card, autoprobe=True)


def _types(survey: Survey, card: CutCard, wanted: Mapping[str, int], *, mix: bool) -> Iterator[Step | Problem]:
    """Yield the steps to so many vGPUs of each type; without any, what is ours goes."""
    counts = Counter({plain(name): count for name, count in wanted.items()})
    there = list(vgpus_of(survey, card))
    left = counts - Counter(one.name for one in there if not one.ours)
    # The mode of several sizes is set while there is no vGPU. Turning the functions off or on ends it, and so does a
    # boot, and sysfs does not tell it.
    sets_mode = (
        mix
        and bool(counts - Counter(one.name for one in there))
        and all(isinstance(one.where, PCIAddress) and one.ours and one.user is None for one in there)
    )
    kept = 0
    # Those in use first: they stay in any case.
    for one in sorted((one for one in there if one.ours), key=lambda one: one.user is None):
        if left[one.name] and not sets_mode:
            left[one.name] -= 1
            kept += 1
        elif one.user is None:
            yield one.removal
        else:
            wrong = f"is of type {one.name}, for which the config has no place, and is in use by {one.user}"
            yield Problem(str(one.where), wrong, "apply again when that has ended")
            kept += 1
    if not counts:
        yield from _nothing(survey, card, kept)
        return
    missing = [name for name, count in sorted(left.items()) for _ in range(count)]
    if not missing:
        return
    if (first := _turned_on(card)) is not None:
        yield first
        if isinstance(first, Problem):
            return
    if sets_mode:
        yield Mix(card.address)
    for name in missing:
        yield Make(card.address, name)


def _turned_on(card: CutCard) -> TurnOn | Problem | None:
    """Return the step after which the card has virtual functions, or why there is none; None if it has some."""
    if card.places:
        return None
    if card.function.vendor_id != NVIDIA or card.function.driver != _NVIDIA or not card.possible or card.functions:
        return Problem(str(card.address), _no_places(card), "install and load the driver that makes vGPUs")
    return TurnOn(card.address)


def _claimable(survey: Survey, card: CutCard, rule: VGPURule) -> Iterator[Step | Problem]:
    """Yield the steps after which the DRA driver can make vGPUs of the card."""
    name = str(card.address)
    if (first := _turned_on(card)) is not None:
        yield first
        if isinstance(first, Problem):
            return
    if any(vgpus_of(survey, card)):
        return  # it lists less than it could become, and its mode stays
    known = {*survey.types.values(), *(kind.name for place in card.places for kind in place.mdev_types)}
    # A GPU instance can be made when the virtual functions are on, so its types may be listed later.
    wanted = {plain(one) for one in rule.types if instance_of(one) is None}
    unknown = sorted(wanted - {plain(one) for one in known})
    if card.places and unknown:
        yield Problem(name, f"can become no vGPU of type {listed(unknown)}", f"name {listed(can_become(card), 12)}")
    elif rule.mixed_sizes:
        yield Mix(card.address)


def _nothing(survey: Survey, card: CutCard, kept: int) -> Iterator[Step | Problem]:
    """Yield the step that turns the virtual functions off, if they are ours and nobody's."""
    ours, is_nvidia = survey.journal.functions.get(str(card.address)), card.function.driver == _NVIDIA
    if ours is None or kept or not card.functions or _has_others(survey, card):
        return
    if not is_nvidia and ours != len(card.functions):
        return  # somebody else made them since
    if (reason := _in_use(survey, card) if is_nvidia else _cannot_be_recut(survey, card)) is not None:
        wrong = f"has virtual functions for which the config has no place: {reason}"
        yield Problem(str(card.address), wrong, "apply again when that has ended")
    else:
        yield TurnOff(card.address) if is_nvidia else Count(card.address, ours, 0)


def _has_others(survey: Survey, card: CutCard) -> bool:
    """Whether somebody else made one of its vGPUs or mediated devices."""
    return any(not one.ours for one in vgpus_of(survey, card))


def _in_use(survey: Survey, card: CutCard) -> str | None:
    names = (str(function.address) for function in card.functions)
    return next((f"{name} is in use by {survey.users[name]}" for name in names if name in survey.users), None)


@dataclass(frozen=True, slots=True)
class VGPU:
    """A vGPU that is there: its type's name as people write it (empty if unknown), where it is, who uses it."""

    name: str
    where: PCIAddress | UUID
    ours: bool
    user: str | None
    removal: Clear | Remove


def vgpus_of(survey: Survey, card: CutCard) -> Iterator[VGPU]:
    """Yield the vGPUs of a card that are there, by their functions' addresses, then mediated devices by UUID."""
    for function in card.functions:
        if (number := function.vgpu_type) is None:
            continue
        made = survey.journal.types.get(str(function.address))
        name = survey.types.get(number, "")
        user = survey.users.get(str(function.address))
        clear = Clear(card.address, function.address, VGPUType(number, name))
        yield VGPU(plain(name), function.address, made is not None and made.number == number, user, clear)
    for mdev in card.mdevs:
        user = survey.users.get(str(mdev.uuid))
        remove = Remove(card.address, mdev.uuid, mdev.type_name)
        yield VGPU(plain(mdev.type_name), mdev.uuid, str(mdev.uuid) in survey.journal.mdevs, user, remove)


def can_become(card: CutCard) -> tuple[str, ...]:
    """Return the names of the types of which one more can be made now, as people write them, sorted."""
    free = (place for place in card.places if place.function.vgpu_type is None)
    names = {plain(name) for place in free for name in place.creatable.values()}
    names |= {plain(kind.name) for place in card.places for kind in place.mdev_types if kind.available}
    return tuple(sorted(names))


def _no_places(card: CutCard) -> str:
    driver = card.function.driver or "no driver"
    functions = f" with {len(card.functions)} virtual functions" if card.functions else ""
    return f"is on {driver}{functions}, and has neither a list of vGPU types nor of mediated devices"


def _functions(survey: Survey, card: CutCard, count: int, quota: Mapping[Quota, int]) -> Iterator[Step | Problem]:
    """Yield the steps to so many virtual functions: all or none, since the kernel changes a number only by way of 0."""
    now, name = len(card.functions), str(card.address)
    driver = next((one for one in _VFIO_DRIVERS if one in survey.drivers), None)
    if card.function.driver == _NVIDIA:
        yield Problem(name, "is on nvidia, which turns on all virtual functions at once", "name types, not functions")
    elif card.function.driver == _GIM:
        # Its parameters are fixed when it is loaded, and it has no sriov_configure.
        if now != count:
            wrong = f"has {now} virtual functions, expected {count}: gim makes them when it is loaded"
            yield Problem(name, wrong, "load gim with another vf_num, and with no guest on the card")
    elif card.function.driver is None:
        yield Problem(name, "has no driver, so it can have no virtual functions", "load its driver")
    elif count > card.possible:
        yield Problem(name, f"can have {card.possible} virtual functions, expected {count}", "ask for fewer")
    elif driver is None:
        yield Problem(name, "its virtual functions need vfio-pci, which is not loaded", "modprobe vfio-pci")
    elif now == count and all(card.quotas.get(one, {}).get(file) == value
                              for one in range(1, now + 1) for file, value in quota.items()):  # fmt: skip
        # Others' stay with the driver that they have.
        if name in survey.journal.functions and any(one.driver is None for one in card.functions):
            yield Give(card.address, driver)
    elif now and (reason := _cannot_be_recut(survey, card)) is not None:
        wrong = f"has {now} virtual functions, expected {count}{' with other quotas' if now == count else ''}: {reason}"
        yield Problem(name, wrong, "end that, or turn them off yourself: they change all at once")
    else:
        if now:
            yield Count(card.address, now, 0)
        if card.autoprobe:
            yield Probe(card.address, on=False)
        for function in range(1, count + 1):
            for file, value in quota.items():
                yield Grant(card.address, function, file, value)
        yield Count(card.address, 0, count)
        if card.autoprobe:
            yield Probe(card.address, on=True)
        yield Give(card.address, driver)


def _cannot_be_recut(survey: Survey, card: CutCard) -> str | None:
    if survey.journal.functions.get(str(card.address)) != len(card.functions):
        return "somebody else made them"
    if (reason := _in_use(survey, card)) is not None:
        return reason
    drivers = (one for one in card.functions if one.driver is not None and not is_vfio_driver(one.driver))
    return next((f"{one.address} is on {one.driver}" for one in drivers), None)
