"""One step of a plan: done, read back, and remembered as ours before it is done; and how it is undone.

What the kernel or NVIDIA's script says is not believed: both report success without an effect.
"""

import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, assert_never
from uuid import UUID

from pci.address import PCIAddress
from pci.sysfs.functions import DEVICES, MDEV_TYPES, MDEVS, VGPU_TYPE
from pci.sysfs.vgpus import AUTOPROBE, COUNT, quota_directory
from pci.vgpus import CutCard, MdevType, Place
from plugin.cards.vgpu_rules import Quota
from plugin.cards.vgpu_types import instance_of, plain
from plugin.changes.engine import Failed, Wedged, Write, Writer, do_writes
from plugin.changes.journal import JournalFile, VGPUType
from plugin.kinds.drivers import DriverBinding, writes
from plugin.vgpus.plan import (
    Clear,
    Count,
    Give,
    Grant,
    Make,
    Mix,
    Probe,
    Rebind,
    Remove,
    Step,
    TurnOff,
    TurnOn,
    can_become,
)
from program.errors import Refusal
from program.problem import listed

#: sriov-manage fails while anything that asks NVML holds the driver's unbind lock, and when it is called too early
#: after a boot: that passes.
_TRIES = 5
_LOOKS = 20  # at what the kernel makes a moment later
_LOOKS_AFTER_FAILURE = 4
_APART = 0.25  # seconds

_PROBE = "bus/pci/drivers_probe"

T = TypeVar("T")
Undo = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Types:
    """What vGPUs are made and taken away with.

    `read` returns a card as it is now, `user` who uses a function or a mediated device, by its address or UUID. `write`
    does one write to sysfs. `wait` so many seconds.
    """

    read: Callable[[PCIAddress], CutCard]
    user: Callable[[str], str | None]
    write: Writer
    wait: Callable[[float], None]
    journal: JournalFile

    def awaited(self, card: PCIAddress, is_so: Callable[[CutCard], bool], looks: int = _LOOKS) -> bool:
        """Return whether the card becomes so, at one of so many looks."""
        for look in range(looks):
            if look:
                self.wait(_APART)
            if is_so(self.read(card)):
                return True
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class World(Types):
    """What steps are done with, and how they see what became of them.

    `sriov_manage` calls NVIDIA's script with `-e` or `-d`: Failed if it fails, Refusal if it cannot be called;
    `nvidia_smi` calls that, alike. `uuid` makes a new one.
    """

    quota: Callable[[PCIAddress, int], Mapping[str, int]]
    sriov_manage: Callable[[str, PCIAddress], None]
    nvidia_smi: Callable[[Sequence[str]], None]
    uuid: Callable[[], UUID]

    def called(self, flag: str, card: PCIAddress, is_so: Callable[[CutCard], bool]) -> str | None:
        """Call sriov-manage until the card is so, a few times; return what it said last if the card never is, else
        None."""
        failure = ""
        for _ in range(_TRIES):
            looks = _LOOKS
            try:
                self.sriov_manage(flag, card)
            except Failed as failed:
                failure, looks = f": {failed.problem.wrong}", _LOOKS_AFTER_FAILURE
            if self.awaited(card, is_so, looks):
                return None
            if self.read(card).function.driver is None:
                # The script unbinds the card, and may leave it so.
                try:
                    do_writes([Write(_PROBE, str(card))], self.write)
                except Failed as failed:
                    if isinstance(failed, Wedged):
                        raise
                    failure = f": {failed}"
        return failure


def do(world: World, step: Step) -> Undo:
    """Do a step; return what undoes it. Failed if it could not be done, and nothing of it is left."""
    match step:
        case TurnOn():
            return _turn_on(world, step.card)
        case TurnOff():
            return _turn_off(world, step.card)
        case Rebind():
            return _rebind(world, step.card)
        case Mix():
            return _mix(world, step.card, on=True)
        case Make():
            return _make(world, step)
        case Clear():
            return clear(world, step)
        case Remove():
            remove(world, step)
            return lambda: _make(world, Make(step.card, plain(step.name)))
        case Probe():
            return _probe(world, step.card, step.on)
        case Grant():
            return _grant(world, step)
        case Count():
            return _count(world, step)
        case Give():
            return _give(world, step)
        case _:
            assert_never(step)


def _turn_on(world: World, card: PCIAddress) -> Undo:
    if world.read(card).functions:
        return lambda: None  # somebody was faster, and they are theirs
    world.journal.change(lambda made: replace(made, functions={**made.functions, str(card): world.read(card).possible}))
    try:
        failure = world.called("-e", card, lambda now: bool(now.functions) and bool(now.places))
    except Refusal:
        _forget_functions(world, card)
        raise
    if failure is None:
        return lambda: _turn_off(world, card)
    if not world.read(card).functions:
        _forget_functions(world, card)
    wrong = f"has no virtual functions of which vGPUs can be made after {_TRIES} calls of sriov-manage -e{failure}"
    raise Failed(card, wrong, "end what asks NVML for the cards, and see the kernel's log (dmesg)")


def _turn_off(world: World, card: PCIAddress) -> Undo:
    now = world.read(card)
    users = [str(one.address) for one in now.functions if one.vgpu_type or world.user(str(one.address)) is not None]
    users += [str(mdev.uuid) for mdev in now.mdevs]
    if users:
        raise Failed(card, f"its virtual functions are in use: {listed(users)}", "apply again when that has ended")
    failure = world.called("-d", card, lambda now: not now.functions)
    if failure is None:
        _forget_functions(world, card)
        return lambda: _turn_on(world, card)
    wrong = f"has virtual functions after {_TRIES} calls of sriov-manage -d{failure}"
    raise Failed(card, wrong, "end what asks NVML for the cards, and see the kernel's log (dmesg)")


def _forget_functions(world: World, card: PCIAddress) -> None:
    world.journal.change(lambda made: replace(made, functions=_without(made.functions, str(card))))


def _rebind(world: World, card: PCIAddress) -> Undo:
    do_writes([Write(_PROBE, str(card))], world.write)
    if not world.awaited(card, lambda now: now.function.driver is not None):
        raise Failed(card, "has no driver, and none takes it", "load its driver, and see the kernel's log (dmesg)")
    if not world.read(card).functions:
        _forget_functions(world, card)
    return lambda: None


def _mix(world: World, card: PCIAddress, *, on: bool) -> Undo:
    """Its exit code is all that says so; a type of another size that the driver refuses later undoes the card."""
    world.nvidia_smi(["vgpu", "-shm", str(int(on)), "-i", str(card)])
    return lambda: _mix(world, card, on=not on)


def _make(world: World, step: Make) -> Undo:
    card = world.read(step.card)
    for place in card.places:
        if place.takes_type and place.function.vgpu_type is None:
            for number, name in place.creatable.items():
                if plain(name) == step.name:
                    return become(world, step.card, place.function.address, VGPUType(number, name))
        for kind in place.mdev_types:
            if plain(kind.name) == step.name and kind.available:
                uuid = world.uuid()
                create(world, step.card, place, kind, uuid)
                return lambda: remove(world, Remove(step.card, uuid, step.name))
    raise Failed(step.card, f"can become no further vGPU of type {step.name}", _fix(card))


def _fix(card: CutCard) -> str:
    names = can_become(card)
    return f"it can become {listed(names, 12)}" if names else "it can become nothing more: remove a vGPU first"


def become(world: Types, card: PCIAddress, function: PCIAddress, kind: VGPUType) -> Undo:
    """Make a vGPU of a virtual function that is none; Failed as of `do`."""
    if (now := _type_now(world, card, function)) is not None:
        raise Failed(function, f"is of type {now} already", "apply again")
    world.journal.change(lambda made: replace(made, types={**made.types, str(function): kind}))
    try:
        _write_type(world, card, function, kind.number)
    except Failed as failed:
        if not isinstance(failed, Wedged):
            forget_type(world, function)
        if isinstance(failed.__cause__, OSError) and failed.__cause__.errno == errno.EIO and instance_of(kind.name):
            wrong = f"has no GPU instance for a vGPU of type {plain(kind.name)}"
            raise Failed(card, wrong, make_instance(card)) from failed
        raise
    return lambda: clear(world, Clear(card, function, kind))


def make_instance(card: PCIAddress) -> str:
    """Return what to do where a MIG-backed type has no GPU instance."""
    return f"make one, of the type's profile in nvidia-smi vgpu -s -v: nvidia-smi mig -i {card} -cgi PROFILE -C"


def _write_type(world: Types, card: PCIAddress, function: PCIAddress, number: int) -> None:
    do_writes([Write(f"{DEVICES}/{function}/{VGPU_TYPE}", str(number))], world.write)
    if (found := _type_now(world, card, function)) != (number or None):
        wrong = f"was told to be of type {number}, and is of type {found or 0}"
        raise Failed(function, wrong, "see the driver's log (dmesg, nvidia-vgpu-mgr); MIG's types need a GPU instance")


def _type_now(world: Types, card: PCIAddress, function: PCIAddress) -> int | None:
    return next((one.vgpu_type for one in world.read(card).functions if one.address == function), None)


def clear(world: Types, step: Clear) -> Undo:
    """Make a virtual function that is a vGPU none; Failed as of `do`."""
    _refuse_use(world, str(step.function))
    now = _type_now(world, step.card, step.function)
    if now not in (None, step.type.number):
        raise Failed(step.function, f"has become type {now} meanwhile", "apply again")
    if now is not None:
        _write_type(world, step.card, step.function, 0)
    forget_type(world, step.function)
    return lambda: become(world, step.card, step.function, step.type)


def forget_type(world: Types, function: PCIAddress) -> None:
    """Remember no more that the function is ours."""
    world.journal.change(lambda made: replace(made, types=_without(made.types, str(function))))


def create(world: Types, card: PCIAddress, place: Place, kind: MdevType, uuid: UUID) -> None:
    """Make the mediated device with this UUID; Failed as of `do`."""
    parent = place.function.address
    world.journal.change(lambda made: replace(made, mdevs={**made.mdevs, str(uuid): str(parent)}))
    try:
        do_writes([Write(f"{DEVICES}/{parent}/{MDEV_TYPES}/{kind.directory}/create", str(uuid))], world.write)
        if not world.awaited(card, lambda now: uuid in {mdev.uuid for mdev in now.mdevs}):
            raise Failed(parent, f"has not made the mediated device {uuid}", "see the kernel's log (dmesg)")
    except Failed as failed:
        if not isinstance(failed, Wedged):
            forget_mdev(world, uuid)
        raise


def remove(world: Types, step: Remove) -> None:
    """Remove a mediated device, if it is there; Failed as of `do`."""
    _refuse_use(world, str(step.uuid))
    found = next((mdev for mdev in world.read(step.card).mdevs if mdev.uuid == step.uuid), None)
    if found is not None:
        do_writes([Write(f"{MDEVS}/{step.uuid}/remove", "1")], world.write)
        if not world.awaited(step.card, lambda now: step.uuid not in {mdev.uuid for mdev in now.mdevs}):
            raise Failed(step.uuid, "is still there after its removal", "see the kernel's log (dmesg)")
    forget_mdev(world, step.uuid)


def forget_mdev(world: Types, uuid: UUID) -> None:
    """Remember no more that the mediated device is ours."""
    world.journal.change(lambda made: replace(made, mdevs=_without(made.mdevs, str(uuid))))


def _probe(world: World, card: PCIAddress, on: bool) -> Undo:
    path, name = f"{DEVICES}/{card}/{AUTOPROBE}", str(card)
    if not on:
        world.journal.change(lambda made: replace(made, unprobed=tuple(sorted({*made.unprobed, name}))))
    do_writes([Write(path, str(int(on)))], world.write)
    if world.read(card).autoprobe is not on:
        raise Failed(path, f"does not become {int(on)}", "see the kernel's log (dmesg)")
    if on:
        world.journal.change(lambda made: replace(made, unprobed=tuple(one for one in made.unprobed if one != name)))
    return lambda: _probe(world, card, not on)


def _grant(world: World, step: Grant) -> Undo:
    directory = quota_directory(step.card, step.function)
    before = world.quota(step.card, step.function).get(step.quota)
    if before is None:
        raise Failed(f"{directory}/{step.quota}", "is not there", "leave the quota out, or use a kernel that has it")
    if before == step.value:
        return lambda: None
    _write_quota(world, step, step.value)
    return lambda: _write_quota(world, step, before)


def _write_quota(world: World, step: Grant, value: int) -> None:
    path = f"{quota_directory(step.card, step.function)}/{step.quota}"
    do_writes([Write(path, str(value))], world.write)
    if (found := world.quota(step.card, step.function).get(step.quota)) != value:
        raise Failed(path, f"has become {found}, expected {value}", "ask for a value that the driver takes")


def _count(world: World, step: Count) -> Undo:
    card = str(step.card)
    now = world.read(step.card)
    if len(now.functions) != step.now:
        raise Failed(card, f"has {len(now.functions)} virtual functions, expected {step.now}", "apply again")
    for function in now.functions:
        _refuse_use(world, str(function.address))
    if step.count:
        world.journal.change(lambda made: replace(made, functions={**made.functions, card: step.count}))
    try:
        do_writes([Write(f"{DEVICES}/{card}/{COUNT}", str(step.count))], world.write)
        if not world.awaited(step.card, lambda now: len(now.functions) == step.count):
            raise Failed(card, f"does not get {step.count} virtual functions", "see the kernel's log (dmesg)")
    except Failed as failed:
        if step.count and not isinstance(failed, Wedged):
            _forget_functions(world, step.card)
        raise
    if step.count:
        return lambda: _count(world, Count(step.card, step.count, step.now))
    _forget_functions(world, step.card)
    return lambda: _count_again(world, now)


def _count_again(world: World, before: CutCard) -> None:
    """Make the virtual functions that were there, with what the kernel forgot of them: their quotas and drivers."""
    if before.autoprobe:
        _probe(world, before.address, on=False)
    for number, quotas in before.quotas.items():
        for file, value in quotas.items():
            _grant(world, Grant(before.address, number, Quota(file), value))
    _count(world, Count(before.address, 0, len(before.functions)))
    if before.autoprobe:
        _probe(world, before.address, on=True)
    for driver in sorted({function.driver for function in before.functions if function.driver is not None}):
        _give(world, Give(before.address, driver))


def _give(world: World, step: Give) -> Undo:
    free = DriverBinding(None, None)
    taken = DriverBinding(step.driver, step.driver)
    done: list[PCIAddress] = []

    def undo() -> None:
        for address in reversed(done):
            do_writes(writes(address, taken, free), world.write)

    try:
        for function in world.read(step.card).functions:
            if function.driver is None:
                done.append(function.address)
                do_writes(writes(function.address, free, taken), world.write)
        left = [
            str(one.address) for one in world.read(step.card).functions if one.address in done and one.driver is None
        ]
        if left:
            wrong = f"is not taken by {step.driver}"
            raise Failed(listed(left), wrong, "see the kernel's log (dmesg); vfio needs an IOMMU that is turned on")
    except Failed as failed:
        if not isinstance(failed, Wedged):
            undo()
        raise
    return undo


def _refuse_use(world: Types, name: str) -> None:
    if (user := world.user(name)) is not None:
        raise Failed(name, f"is in use by {user}", "apply again when that has ended")


def _without(items: Mapping[str, T], name: str) -> Mapping[str, T]:
    return {one: value for one, value in items.items() if one != name}
