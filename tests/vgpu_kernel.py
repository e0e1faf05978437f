"""A /sys whose cards can be cut, and what the kernel, NVIDIA's driver and its script do to it.

The behaviours: lists of types that shrink with each vGPU, a number that
is read back as 0, EIO for a type without its GPU instance, all of it lost when the virtual functions are turned off; a
number of virtual functions that changes only by way of 0; mediated devices whose types share the card's memory.
"""

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from pci.sysfs.functions import DEVICES, MDEVS
from pci.sysfs.vgpus import QUOTAS
from plugin.changes.engine import Failed, Write
from plugin.changes.processes import DeviceNumber, Processes
from tests.compose import Function, add, compose
from tests.kernel import bind, load

L40S = {
    1145: ("NVIDIA L40S-1B", 1, 32),
    1152: ("NVIDIA L40S-8Q", 8, 6),
    1153: ("NVIDIA L40S-8A", 8, 6),
    1154: ("NVIDIA L40S-12Q", 12, 4),
    1155: ("NVIDIA L40S-24Q", 24, 2),
    1156: ("NVIDIA L40S-48Q", 48, 1),
}
#: MIG-backed: how many of a type one GPU instance has, and the instance's profile, which is not in sysfs.
DC = {
    1501: ("NVIDIA RTX Pro 6000 Blackwell DC-1-12Q", 12, 2),
    1502: ("NVIDIA RTX Pro 6000 Blackwell DC-1-12A", 12, 2),
    1503: ("NVIDIA RTX Pro 6000 Blackwell DC-1-24Q", 24, 1),
    1504: ("NVIDIA RTX Pro 6000 Blackwell DC-2-48Q", 48, 1),
}
PROFILES = {1501: "1g.24gb+gfx", 1502: "1g.24gb+gfx", 1503: "1g.24gb+gfx", 1504: "2g.48gb+gfx"}
A10 = {"nvidia-588": ("NVIDIA A10-4Q", 4), "nvidia-590": ("NVIDIA A10-8Q", 8), "nvidia-592": ("NVIDIA A10-24Q", 24)}


@dataclass(frozen=True, kw_only=True)
class Card:
    """A card that can be cut. `types`: by number a vGPU type's name, its gigabytes, and how many can be made; `mdevs`:
    by directory a mediated type's name and gigabytes. `without_instance`: types that lack a GPU instance. `profiles`:
    of a card in MIG mode the profile of each type's GPU instance; how many of the type are in one then."""

    bus: int
    id: str = "10de:26b9"
    driver: str | None = "nvidia"
    possible: int = 8
    memory: int = 48
    types: Mapping[int, tuple[str, int, int]] = field(default_factory=dict)
    mdevs: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    without_instance: frozenset[int] = frozenset()
    profiles: Mapping[int, str] = field(default_factory=dict)
    quotas: bool = False

    @property
    def address(self) -> str:
        return f"0000:{self.bus:02x}:00.0"

    def function(self, number: int) -> str:
        """The address of a virtual function, from 1."""
        return f"0000:{self.bus:02x}:{(3 + number) // 8:02x}.{(3 + number) % 8}"

    @property
    def functions(self) -> list[str]:
        return [self.function(number) for number in range(1, self.possible + 1)]


def l40s(bus: int = 0x41) -> Card:
    return Card(bus=bus, types=L40S)


def dc(bus: int = 0x41) -> Card:
    return Card(bus=bus, id="10de:2bb5", memory=96, types=DC, profiles=PROFILES)


def a10(bus: int = 0x61) -> Card:
    return Card(bus=bus, id="10de:2236", memory=24, mdevs=A10)


def b60(bus: int = 0x03, driver: str = "xe") -> Card:
    return Card(bus=bus, id="8086:e211", driver=driver, memory=24, quotas=driver == "xe")


class Kernel:
    """The cards below `sys`, uncut. `instead` says what is raised in place of the write with a number, from 1; `script`
    what the next calls of sriov-manage do: `works`, `fails`, `does nothing`, `unbinds`. `guests` have opened what they
    name, `pods` and `claims` were given it. `wrongs` are the writes that took what one of them had or what is
    `foreign`, `refused` those that asked for what cannot be made."""

    def __init__(self, root: Path, *cards: Card, drivers: tuple[str, ...] = ("vfio-pci",)) -> None:
        self.sys, self.proc, self.state = root / "sys", root / "proc", root / "state"
        self.cards = {card.address: card for card in cards}
        self.instead: Callable[[int], BaseException | None] = lambda number: None
        self.script: list[str] = []
        self.guests: dict[str, str] = {}
        self.pods: dict[str, str] = {}
        self.claims: dict[str, str] = {}
        self.foreign: set[str] = set()
        self.wrongs: list[str] = []
        self.refused: list[str] = []
        self.log: list[str] = []
        self.mixed: set[str] = set()
        self.instances: dict[str, dict[str, int]] = {}
        self._in_instance: dict[str, tuple[str, int]] = {}
        self.boots = 0
        compose(self.sys, [_function(card, 0) for card in cards])
        load(self.sys, "nvidia", "xe", "i915", "gim", *drivers)
        self.state.mkdir()
        for card in cards:
            self._power_on(card)
        self.boot()

    # What people and guests do.

    def boot(self) -> None:
        """All that was made is lost, and the guests have ended."""
        for users in (self.guests, self.pods, self.claims):
            users.clear()
        self.foreign.clear()
        for card in self.cards.values():
            self._off(card)
            bind(self.sys, card.address, card.driver)
            if card.possible:
                (self.sys / DEVICES / card.address / "sriov_drivers_autoprobe").write_text("1\n")
        self.boots += 1
        (self.proc / "sys/kernel/random").mkdir(parents=True, exist_ok=True)
        (self.proc / "sys/kernel/random/boot_id").write_text(f"boot-{self.boots}\n")

    def on(self, card: Card, count: int | None = None) -> None:
        """Somebody else turns on the virtual functions."""
        self._on(card, count or card.possible)
        self.foreign.add(card.address)

    def write_type(self, address: str, number: int) -> None:
        """Somebody else makes a vGPU of that virtual function, or removes theirs."""
        self.foreign.discard(address)
        self._become(address, number)
        if number:
            self.foreign.add(address)

    def make_instances(self, card: Card, **counts: int) -> None:
        """The admin makes so many GPU instances of each profile, by its first part: `_1g=4`."""
        profiles = {one.partition(".")[0]: one for one in card.profiles.values()}
        self.instances[card.address] = {profiles[name.strip("_")]: count for name, count in counts.items()}

    def instance_for(self, card: Card, number: int) -> tuple[str, int] | None:
        """The GPU instance that the driver takes for one more vGPU of the type: one with vGPUs of its size and room, or
        an empty one; None if there is none."""
        _, size, most = card.types[number]
        profile, now = card.profiles[number], self._numbers(card)
        guests: dict[int, list[int]] = {one: [] for one in range(self.instances.get(card.address, {}).get(profile, 0))}
        for address, (of, one) in self._in_instance.items():
            if of == profile and address in now:
                guests[one].append(card.types[now[address]][1])
        fits = [one for one, sizes in guests.items() if set(sizes) <= {size} and len(sizes) < most]
        return (profile, max(fits, key=lambda one: len(guests[one]))) if fits else None

    def make_mdev(self, card: Card, uuid: str) -> bool:
        """Somebody else makes a mediated device, of the first type that can be made; return whether there is one."""
        for parent in self._virtual(card) if card.possible else [card.address]:
            for directory in self._available(card, parent):
                self.create(parent, directory, uuid)
                self.foreign.add(uuid)
                return True
        return False

    def can_have(self, card: Card) -> dict[str, int]:
        """How many mediated devices of each type can be made, by the type's directory."""
        found: Counter[str] = Counter()
        for parent in self._virtual(card) if card.possible else [card.address]:
            found.update(self._available(card, parent))
        return found

    def remove_mdev(self, uuid: str) -> None:
        """Somebody else removes theirs."""
        self.foreign.discard(uuid)
        self._remove_from(next(card for card in self.cards.values() if uuid in self._mdevs(card)), uuid)

    def types(self, card: Card) -> dict[str, str]:
        """The vGPUs that are there: their types' names, by address or UUID."""
        found = {address: card.types[number][0] for address, number in self._numbers(card).items() if number}
        return found | {uuid: card.mdevs[directory][0] for uuid, (_, directory) in self._mdevs(card).items()}

    def count(self, card: Card) -> int:
        return len(self._virtual(card))

    def processes(self) -> Processes:
        """What the guests have open: the node of the function, or of its group."""
        openers = {}
        for number, (name, who) in enumerate(sorted(self.guests.items())):
            place = self.sys / (DEVICES if (self.sys / DEVICES / name).exists() else MDEVS) / name
            nodes = sorted(place.glob("vfio-dev/vfio*/dev")) if number % 2 else []
            nodes = nodes or [self.sys / "class/vfio" / (place / "iommu_group").readlink().name / "dev"]
            major, minor = map(int, nodes[0].read_text().split(":"))
            openers[DeviceNumber(False, major, minor)] = (who,)
        return Processes(openers=openers, mounts={}, swaps=frozenset(), nvidia_minors={}, unseen=None)

    # What the kernel and NVIDIA's script do.

    def run(self, program: str, *arguments: str) -> None:
        """Call a program of NVIDIA's driver."""
        if program == "sriov-manage":
            self.sriov_manage(*arguments)
        else:
            self.nvidia_smi(arguments)

    def sriov_manage(self, flag: str, address: object) -> None:
        self.log.append(f"sriov-manage {flag} {address}")
        does, card = (self.script.pop(0) if self.script else "works"), self.cards[str(address)]
        if does == "fails":
            raise Failed("sriov-manage", "ends with 1: Cannot obtain unbindLock", "")
        bind(self.sys, card.address, None if does == "unbinds" else card.driver)
        if does == "works" and flag == "-e":
            self._on(card, card.possible)
        elif does == "works":
            self._takes(card, *self._virtual(card), *self._mdevs(card))
            self._off(card)

    def nvidia_smi(self, arguments: Sequence[str]) -> None:
        self.log.append(f"nvidia-smi {' '.join(arguments)}")
        command, flag, on, _, address = arguments
        assert (command, flag) == ("vgpu", "-shm")
        card = self.cards[address]
        if not self.count(card) or any(self._numbers(card).values()) or self._mdevs(card):
            raise Failed("nvidia-smi", "ends with 19: In use by another client", "")
        (self.mixed.add if on == "1" else self.mixed.discard)(address)
        self._list(card)

    def write(self, write: Write) -> None:
        self.log.append(str(write))
        if (error := self.instead(len(self.log))) is not None:
            raise error
        path, text = self.sys / write.path, write.text
        name = write.path.split("/")[3] if write.path.count("/") > 2 else ""
        if not (path.parent if path.name == "unbind" else path).exists():
            raise _refusal(errno.ENOENT)
        match path.name:
            case "current_vgpu_type":
                self._become(name, int(text))
            case "create":
                self.create(name, path.parent.name, text)
            case "remove":
                self._remove_from(next(card for card in self.cards.values() if name in self._mdevs(card)), name)
            case "sriov_numvfs":
                self._set_count(self.cards[name], int(text))
            case "drivers_probe":
                self._probe(text)
            case "unbind":
                bind(self.sys, text, None)
            case _:
                path.write_text(f"{text or '(null)'}\n")

    def _takes(self, card: Card, *names: str) -> None:
        """Note that these go, if somebody has them."""
        for name in names:
            self.wrongs += [
                f"{name} of {users[name]}" for users in (self.guests, self.pods, self.claims) if name in users
            ]
            if name in self.foreign:
                self.wrongs.append(f"{name} of others")

    def _become(self, address: str, number: int) -> None:
        card = self._card_of(address)
        now = self._numbers(card)
        place = self.sys / DEVICES / address
        if number == 0:
            self._takes(card, address)
            if address in self.guests:
                raise _refusal(errno.EPERM)
            shutil.rmtree(place / "vfio-dev", ignore_errors=True)
            self._in_instance.pop(address, None)
        elif number in card.without_instance:
            raise _refusal(errno.EIO)
        elif number in card.profiles and not now[address]:
            if (instance := self.instance_for(card, number)) is None:
                raise _refusal(errno.EIO)
            self._in_instance[address] = instance
        elif now[address] or number not in self.creatable(card):
            self.refused.append(f"{address}: {number}")
            number = now[address]
        (place / "nvidia/current_vgpu_type").write_text(f"{number}\n")
        if number:
            self._node(place, address)
        self._list(card)

    def create(self, parent: str, directory: str, uuid: str) -> None:
        card = self._card_of(parent)
        if directory not in self._available(card, parent):
            self.refused.append(f"{parent}: {directory}")
            raise _refusal(errno.ENOSPC)
        above = (self.sys / DEVICES / parent).resolve()
        place = above / uuid
        place.mkdir()
        (place / "mdev_type").symlink_to(f"../mdev_supported_types/{directory}")
        (place / "remove").touch()
        group = 1000 + UUID(uuid).int % 9973
        self._group(place, group)
        (self.sys / f"kernel/iommu_groups/{group}/name").write_text("vfio-noiommu\n")
        link = self.sys / MDEVS / uuid
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(place, link.parent.resolve()))
        self._list(card)

    def _remove_from(self, card: Card, uuid: str) -> None:
        self._takes(card, uuid)
        self._remove(uuid)
        self._list(card)

    def _remove(self, uuid: str) -> None:
        place = (self.sys / MDEVS / uuid).resolve()
        (self.sys / MDEVS / uuid).unlink()
        shutil.rmtree(place)

    def _set_count(self, card: Card, count: int) -> None:
        if card.driver in ("nvidia", "gim"):
            raise _refusal(errno.ENOENT)
        if count > card.possible:
            raise _refusal(errno.ERANGE)
        if now := self._virtual(card):
            if count:
                raise _refusal(errno.EBUSY)
            self._takes(card, card.address, *now)
            self._off(card)
        elif count:
            self._on(card, count)

    def _probe(self, address: str) -> None:
        place = self.sys / DEVICES / address
        override = (place / "driver_override").read_text().strip()
        driver = self.cards[address].driver if address in self.cards else None
        if not (place / "driver").is_symlink():
            bind(self.sys, address, driver if override == "(null)" else override)

    # The tree.

    def _power_on(self, card: Card) -> None:
        place = self.sys / DEVICES / card.address
        (place / "driver_override").write_text("(null)\n")
        (self.sys / "bus/pci/drivers_probe").touch()
        if card.possible:
            for name, value in (("sriov_totalvfs", card.possible), ("sriov_numvfs", 0), ("sriov_drivers_autoprobe", 1)):
                (place / name).write_text(f"{value}\n")
        if not card.possible:
            self._list(card)
        if card.quotas:
            for number in range(1, card.possible + 1):
                (place / f"sriov_admin/vf{number}/profile").mkdir(parents=True)
            self._no_quotas(card)

    def _no_quotas(self, card: Card) -> None:
        for directory in (self.sys / DEVICES / card.address).glob("sriov_admin/vf*/profile"):
            for quota in QUOTAS:
                (directory / quota).write_text("0\n")

    def _on(self, card: Card, count: int) -> None:
        if self._virtual(card):
            return
        place = self.sys / DEVICES / card.address
        takes = (place / "sriov_drivers_autoprobe").read_text() == "1\n"
        for number in range(1, count + 1):
            function = _function(card, number, driver=card.driver if takes else None)
            add(self.sys, function)
            below = self.sys / DEVICES / function.address
            (below / "driver_override").write_text("(null)\n")
            self._group(below, card.bus * 64 + number)
            if card.types:
                (below / "nvidia").mkdir()
                (below / "nvidia/current_vgpu_type").write_text("0\n")
        (place / "sriov_numvfs").write_text(f"{count}\n")
        self._list(card)

    def _off(self, card: Card) -> None:
        for uuid in self._mdevs(card):
            self._remove(uuid)
            self.foreign.discard(uuid)
        for address in self._virtual(card):
            group = (self.sys / DEVICES / address / "iommu_group").readlink().name
            shutil.rmtree(self.sys / "kernel/iommu_groups" / group)
            shutil.rmtree((self.sys / DEVICES / address).resolve())
            (self.sys / DEVICES / address).unlink()
            self.foreign.discard(address)
        self.foreign.discard(card.address)
        self.mixed.discard(card.address)
        self.instances.pop(card.address, None)
        for address in card.functions:
            self._in_instance.pop(address, None)
        if card.possible:
            (self.sys / DEVICES / card.address / "sriov_numvfs").write_text("0\n")
        if card.quotas:
            self._no_quotas(card)

    def _group(self, place: Path, group: int) -> None:
        groups = self.sys.resolve() / "kernel/iommu_groups"
        (groups / str(group) / "devices").mkdir(parents=True, exist_ok=True)
        if not (place / "iommu_group").is_symlink():
            (place / "iommu_group").symlink_to(os.path.relpath(groups / str(group), place.resolve()))
        node = self.sys / "class/vfio" / str(group)
        node.mkdir(parents=True, exist_ok=True)
        (node / "dev").write_text(f"240:{group}\n")

    def _node(self, place: Path, address: str) -> None:
        number = int(address[5:7], 16) * 64 + int(address[8:10], 16) * 8 + int(address[11:])
        (place / f"vfio-dev/vfio{number}").mkdir(parents=True, exist_ok=True)
        (place / f"vfio-dev/vfio{number}/dev").write_text(f"511:{number}\n")

    def _card_of(self, address: str) -> Card:
        return next(card for card in self.cards.values() if address in (card.address, *card.functions))

    def _virtual(self, card: Card) -> list[str]:
        return [address for address in card.functions if (self.sys / DEVICES / address).exists()]

    def _numbers(self, card: Card) -> dict[str, int]:
        if not card.types:
            return {}
        return {
            address: int((self.sys / DEVICES / address / "nvidia/current_vgpu_type").read_text())
            for address in self._virtual(card)
        }

    def _mdevs(self, card: Card) -> dict[str, tuple[str, str]]:
        """Parent and type's directory of each mediated device."""
        parents = {card.address, *card.functions}
        found = {}
        for link in sorted((self.sys / MDEVS).glob("*")):
            place = link.resolve()
            if place.parent.name in parents:
                found[link.name] = (place.parent.name, (place / "mdev_type").readlink().name)
        return found

    def creatable(self, card: Card) -> list[int]:
        """One size for all vGPUs of a card, as many of a type as it says, and no more memory than there is."""
        if card.profiles:
            return list(card.types)  # whether or not there is an instance
        made = [number for number in self._numbers(card).values() if number]
        sizes = {card.types[number][1] for number in made}
        left = card.memory - sum(card.types[number][1] for number in made)
        return [
            number
            for number, (_, size, most) in card.types.items()
            if size <= left
            and (not sizes or sizes == {size} or card.address in self.mixed)
            and made.count(number) < most
        ]

    def _available(self, card: Card, parent: str) -> dict[str, int]:
        """A virtual function takes one mediated device, a card of the older kind as many as fit, all of one size."""
        made = self._mdevs(card)
        if card.possible and any(one == parent for one, _ in made.values()):
            return {}
        sizes = {card.mdevs[directory][1] for _, directory in made.values()}
        left = card.memory - sum(card.mdevs[directory][1] for _, directory in made.values())
        return {
            directory: 1 if card.possible else left // size
            for directory, (_, size) in card.mdevs.items()
            if size <= left and (sizes <= {size} or card.address in self.mixed)
        }

    def _list(self, card: Card) -> None:
        now = self._numbers(card)
        creatable = self.creatable(card)
        for address, number in now.items():
            lines = [] if number else [f"{one:<6}: {card.types[one][0]}" for one in creatable]
            (self.sys / DEVICES / address / "nvidia/creatable_vgpu_types").write_text(
                "".join(f"{line}\n" for line in ["ID    : vGPU Name", *lines])
            )
        for parent in (self._virtual(card) if card.possible else [card.address]) if card.mdevs else []:
            available = self._available(card, parent)
            for directory, (name, _) in card.mdevs.items():
                place = self.sys / DEVICES / parent / "mdev_supported_types" / directory
                place.mkdir(parents=True, exist_ok=True)
                (place / "create").touch()
                (place / "name").write_text(f"{name}\n")
                (place / "available_instances").write_text(f"{available.get(directory, 0)}\n")


def _function(card: Card, number: int, driver: str | None = "") -> Function:
    """The card, or its virtual function with this number."""
    return Function(
        address=card.function(number) if number else card.address,
        id=card.id,
        pci_class=0x030200,
        path=f"pci0000:{card.bus - 1:02x}",
        driver=card.driver if driver == "" else driver,
        group=card.bus * 64 + number,
        physfn=card.address if number else None,
    )


def _refusal(number: int) -> OSError:
    return OSError(number, os.strerror(number))
