"""Cards are cut, offered, given out, cut anew, killed at and booted, at random: nothing of others' and nothing in use
is touched, nothing is asked for that cannot be made, what is offered is there, and nothing of ours is left that the
config does not want.

A kill ends the process right there: nothing of the program runs after it, which tests.plugin.kinds.cut asserts.
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from pci.sysfs.functions import DEVICES
from plugin.cards.names import PCIIDs
from plugin.cards.vgpu_rules import Quota, VGPURule
from plugin.changes.journal import Journal
from tests.faults import Killed, Life, refuses
from tests.plugin.kinds.cut import Node
from tests.vgpu_kernel import Card, a10, b60, l40s

SEEDS = range(4)
FEW, MANY = 25, 2_500  # of each seed
CARDS = tuple(replace(card, possible=4) for card in (l40s(), a10(), b60()))
#: What may be asked for; all of it can be made of an unused card.
WISHES: dict[str, tuple[VGPURule, ...]] = {
    CARDS[0].address: tuple(
        VGPURule(address=CARDS[0].address, types=types, mixed_sizes=mixed)
        for types, mixed in (
            ({"L40S-24Q": 2}, False),
            ({"L40S-8Q": 3}, False),
            ({"L40S-8Q": 2, "L40S-8A": 2}, False),
            ({"L40S-48Q": 1}, False),
            ({"L40S-1B": 4}, False),
            ({"L40S-24Q": 1, "L40S-8Q": 2}, True),
        )
    ),
    CARDS[1].address: tuple(
        VGPURule(address=CARDS[1].address, types=types) for types in ({"A10-8Q": 2}, {"A10-4Q": 4}, {"A10-24Q": 1})
    ),
    CARDS[2].address: tuple(
        VGPURule(address=CARDS[2].address, functions=count, quota=quota)
        for count, quota in ((4, {}), (2, {Quota.VRAM: 4 << 30}), (2, {Quota.VRAM: 8 << 30, Quota.EXEC_QUANTUM: 20}))
    ),
}

#: What happens, and how often.
_HAPPENS = {
    "wish": 6,
    "guest": 4,
    "allocation": 5,
    "user_ends": 6,
    "stranger": 3,
    "boot": 1,
    "calm": 1,
    "kill": 6,
    "fault": 2,
    "arrival": 2,
}


class Rounds(Life):
    """`seen` counts what happened. `what` is what each thing was when a pod or a claim got it."""

    def __init__(self, root: Path, seed: int, pci_ids: PCIIDs) -> None:
        super().__init__(seed, _HAPPENS, at_once=3)
        self.node, self.pci_ids = Node(root, *CARDS), pci_ids
        self.seen: Counter[str] = Counter()
        self.what: dict[str, str] = {}
        self.is_faulty = False

    def things(self, card: Card) -> dict[str, str]:
        """What a guest can have of a card, and its type."""
        if card.types or card.mdevs:
            return self.node.types(card)
        devices = self.node.sys / DEVICES
        return {
            name: "a virtual function"
            for name in card.functions[: self.node.count(card)]
            if (link := devices / name / "driver").is_symlink() and link.readlink().name == "vfio-pci"
        }

    @property
    def all_things(self) -> dict[str, str]:
        return {name: what for card in CARDS for name, what in self.things(card).items()}

    @property
    def given(self) -> set[str]:
        return {*self.node.pods, *self.node.claims}

    @property
    def used(self) -> set[str]:
        return {*self.node.guests, *self.given}

    # What happens between two calls.

    def wish(self) -> None:
        self.node.wants(*(self.chance.choice(wishes) for wishes in WISHES.values() if self.chance.random() < 0.8))

    def guest(self) -> None:
        """A guest opens what its pod or claim has, or, by hand, anything."""
        if names := sorted(set(self.all_things) - set(self.node.guests)):
            name = self.chance.choice([one for one in names if one in self.given] or names)
            self.node.guests[name] = f"qemu-system-x86 (pid {self.chance.randrange(1, 9999)})"

    def allocation(self) -> None:
        """The kubelet gives a pod, or the DRA driver a claim, what the plugin offers."""
        offered = {device.id: device for device in self.node.inventory(self.pci_ids).offered}
        free = sorted(set(offered) - self.given - set(self.node.gone))
        if not free:
            return
        name = self.chance.choice(free)
        self.what[name] = self.all_things[name]
        if self.chance.random() < 0.5:
            self.node.pods[name] = "default/vm"
        else:
            self.node.claim(name)
        self.seen["given out"] += 1

    def user_ends(self) -> None:
        """A guest ends, or its pod or claim with it; and the kubelet forgets the pods from before a boot."""
        self.node.gone.clear()
        if self.used:
            name = self.chance.choice(sorted(self.used))
            self.node.guests.pop(name, None)
            if self.chance.random() < 0.5:
                self.node.pods.pop(name, None)
                if name in self.node.claims:
                    self.node.unclaim(name)

    def stranger(self) -> None:
        """Somebody else makes or removes a vGPU or a mediated device, or turns on virtual functions."""
        card = self.chance.choice(CARDS)
        theirs = [name for name in self.node.types(card) if name in self.node.foreign and name not in self.used]
        # What a call that was killed has noted and not made would be taken for ours: docs/decisions/0019-vgpus.md.
        noted = self.node.journal
        if theirs and card.types:
            self.node.write_type(theirs[0], 0)
        elif theirs:
            self.node.remove_mdev(theirs[0])
        elif card.possible and not self.node.count(card):
            if card.address not in noted.functions:
                self.node.on(card, None if card.driver == "nvidia" else 3)
                self.seen["made by others"] += 1
        elif card.types:
            free = [one for one in card.functions if one not in self.node.types(card) and one not in noted.types]
            if free and (creatable := self.node.creatable(card)):
                self.node.write_type(free[-1], self.chance.choice(creatable))
                self.seen["made by others"] += 1
        elif card.mdevs:
            self.seen["made by others"] += self.node.make_mdev(card, str(UUID(int=self.chance.getrandbits(128))))

    def boot(self) -> None:
        self.node.boot()

    def calm(self) -> None:
        """Every user ends, and others take away what they made."""
        self.node.guests.clear()
        self.node.pods.clear()
        self.node.gone.clear()
        for name in [*self.node.claims]:
            self.node.unclaim(name)
        for name in sorted(self.node.foreign):
            if name in CARDS[0].functions:
                self.node.write_type(name, 0)
            elif name not in self.node.cards:
                self.node.remove_mdev(name)

    # What happens to the next call.

    def kill(self) -> None:
        self.node.kill_at = self.chance.randrange(1, 30)

    def fault(self) -> None:
        """A write fails, or NVIDIA's script does, or says only that it worked."""
        number = len(self.node.log) + self.chance.randrange(1, 5)
        self.node.instead = refuses(number)
        self.node.script = self.chance.choices(("works", "fails", "does nothing", "unbinds"), k=3)
        self.is_faulty = True

    def arrival(self) -> None:
        """A guest opens something after the plan is made."""
        if names := sorted(set(self.all_things) - self.used):
            self.node.arriving = {self.chance.choice(names)}
            self.is_faulty = True

    def check(self) -> None:
        there = self.all_things
        kept = {name for name in there if name in self.used or name in self.node.foreign}
        asked = {card.address for card in CARDS if self.rule(card) or self.is_ours(card)}
        log = len(self.node.log)
        try:
            problems = self.node.apply()
        except Killed:
            self.seen["killed"] += 1
        else:
            self.seen["cut" if problems == () else "left"] += 1
            for card in CARDS:
                if not any(name in str(problem) for problem in problems for name in self.names(card, there)):
                    self.check_card(card)
            if not (self.is_faulty or self.used or self.node.foreign or self.node.gone):
                assert problems == ()
                self.seen["calm"] += 1
        self.node.instead, self.node.script, self.node.kill_at = refuses(), [], 0
        self.node.arriving, self.is_faulty = set(), False
        now = self.all_things
        assert {name: there[name] for name in kept} == {name: now.get(name) for name in kept}
        assert {name: now.get(name) for name in self.given} == {name: self.what[name] for name in self.given}
        assert (self.node.wrongs, self.node.refused) == ([], [])
        assert {name for line in self.node.log[log:] for name in self.named(line)} <= asked

    # What has to be so.

    def rule(self, card: Card) -> VGPURule | None:
        return next((rule for rule in self.node.config.vgpus if card.address in rule.address), None)

    def is_ours(self, card: Card) -> bool:
        """Whether anything of the card was made by the plugin."""
        return not self.node.journal.ours.isdisjoint([card.address, *card.functions])

    def names(self, card: Card, there: dict[str, str]) -> set[str]:
        """By which a problem names a card, or what it is or was cut into."""
        return {card.address, *card.functions, *self.node.types(card), *(set(there) if card.mdevs else ())}

    def named(self, line: str) -> set[str]:
        """The cards that a line of the log is about."""
        return {card.address for card in CARDS if any(name in line for name in (card.address, *card.functions))}

    def check_card(self, card: Card) -> None:
        """The card is cut as the config says, but for what others made; no memory is given twice."""
        rule, types, place = self.rule(card), self.node.types(card), self.node.sys / DEVICES / card.address
        assert (place / "driver").is_symlink()
        assert (place / "sriov_drivers_autoprobe").read_text() == "1\n"
        ours = {name: what for name, what in types.items() if name not in self.node.foreign}
        if rule is None:
            assert ours == {}
            assert self.node.count(card) == 0 or any(
                name in self.node.foreign for name in (card.address, *card.functions, *types)
            )
        elif rule.functions is not None:
            assert self.node.count(card) == rule.functions
        elif len(ours) == len(types):
            assert sorted(types.values()) == sorted(
                f"NVIDIA {name}" for name, count in rule.types.items() for _ in range(count)
            )
        if not self.node.count(card):
            assert {file.read_text() for file in place.glob("sriov_admin/*/profile/*")} <= {"0\n"}
        sizes = {name: size for name, size, _ in card.types.values()} | dict(card.mdevs.values())
        assert sum(sizes[what] for what in types.values()) <= card.memory

    def end(self) -> None:
        """Nothing is left when the config wants nothing and nobody is there any more."""
        self.calm()
        self.node.wants()
        assert self.node.apply() == ()
        assert self.node.journal == Journal(self.node.journal.boot)
        assert [self.node.types(card) for card in CARDS] == [{}, {}, {}]
        assert {card.address for card in CARDS if self.node.count(card)} <= self.node.foreign


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_in_whatever_order(
    tmp_path: Path, pytestconfig: pytest.Config, pci_ids: PCIIDs, seed: int
) -> None:
    rounds = Rounds(tmp_path, seed, pci_ids)
    rounds.live(MANY if pytestconfig.getoption("--thorough") else FEW)
    rounds.end()
    print(f"seed {seed}: {dict(rounds.seen)}")
    assert {"cut", "left", "killed", "given out", "made by others", "calm"} <= set(rounds.seen)
