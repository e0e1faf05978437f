"""Cards are cut, used, cut anew, killed at and booted, at random: nothing of others' and nothing in use is touched,
nothing is asked for that cannot be made, and at the end nothing of ours is left."""

import errno
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from plugin.cards.vgpu_rules import Quota, VGPURule
from tests.kernel import Killed
from tests.plugin.vgpus.node import Node
from tests.vgpu_kernel import Card, a10, b60, l40s

FEW, MANY = 20, 10_000
CARDS = tuple(replace(card, possible=5) for card in (l40s(), a10(), b60()))
#: What may be asked for; all of it can be made of an unused card.
WISHES: dict[str, tuple[VGPURule, ...]] = {
    CARDS[0].address: tuple(
        VGPURule(address=CARDS[0].address, types=types, mixed_sizes=mixed)
        for types, mixed in (
            ({"L40S-24Q": 2}, False),
            ({"L40S-8Q": 3}, False),
            ({"L40S-8Q": 2, "L40S-8A": 2}, False),
            ({"L40S-48Q": 1}, False),
            ({"L40S-1B": 5}, False),
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


class Rounds:
    def __init__(self, root: Path, seed: int) -> None:
        self.node, self.chance = Node(root, *CARDS), random.Random(seed)
        self.cut = self.left = self.killed = 0

    def things(self, card: Card) -> list[str]:
        """What a guest can have of a card."""
        if card.types or card.mdevs:
            return list(self.node.types(card))
        return card.functions[: self.node.count(card)]

    def wish(self) -> None:
        self.node.wants(*(self.chance.choice(wishes) for wishes in WISHES.values() if self.chance.random() < 0.8))

    def guest(self) -> None:
        names = [name for card in CARDS for name in self.things(card) if name not in self.node.guests]
        if names:
            name = self.chance.choice(names)
            if name in self.node.foreign or self.chance.random() < 0.7:
                self.node.guests[name] = f"qemu-system-x86 (pid {self.chance.randrange(1, 9999)})"
            else:
                self.node.pods[name] = "pod default/vm"

    def guest_ends(self) -> None:
        for users in (self.node.guests, self.node.pods):
            if users:
                users.pop(self.chance.choice(sorted(users)))

    def stranger(self) -> None:
        """Somebody else makes a vGPU, or removes it, or turns on functions."""
        card = CARDS[0]
        theirs = [name for name in self.node.types(card) if name in self.node.foreign and name not in self.used]
        if theirs:
            self.node.write_type(theirs[0], 0)
        elif not self.node.count(card):
            self.node.on(self.chance.choice([one for one in (card, CARDS[2]) if not self.node.count(one)]))
        else:
            free = [name for name in card.functions if name not in self.node.types(card)]
            if free and (creatable := self.node.creatable(card)):
                self.node.write_type(free[-1], self.chance.choice(creatable))

    def boot(self) -> None:
        self.node.boot()
        self.node.pods.clear()

    def fault(self) -> None:
        """The next apply is killed at a write, or a write fails, or NVIDIA's script does."""
        number = len(self.node.log) + self.chance.randrange(1, 5)
        error = self.chance.choice((Killed(), Killed(), OSError(errno.EIO, os.strerror(errno.EIO))))
        self.node.instead = {number: error}.get
        self.node.script = self.chance.choices(("works", "fails", "does nothing", "unbinds"), k=3)

    @property
    def used(self) -> set[str]:
        return {*self.node.guests, *self.node.pods}

    def apply(self) -> None:
        there = {name: card for card in CARDS for name in self.things(card)}
        kept = {name for name in there if name in self.used or name in self.node.foreign}
        try:
            problems = self.node.apply()
        except Killed:
            # The kubelet starts it again, before somebody else could make the same on the same function.
            self.killed += 1
            self.node.instead = lambda number: None
            problems = self.node.apply()
        self.node.instead, self.node.script = (lambda number: None), []
        assert kept <= {name for card in CARDS for name in self.things(card)}
        assert (self.node.wrongs, self.node.refused) == ([], [])
        if problems == ():
            self.cut += 1
            self.check()
        else:
            self.left += 1

    def check(self) -> None:
        """The cards are cut as the config says, but for what others made."""
        for card in CARDS:
            rule = next((rule for rule in self.node.config.vgpus if card.address in rule.address), None)
            theirs = [name for name in self.things(card) if name in self.node.foreign]
            names = sorted(self.node.types(card).values())
            if rule is None:
                assert [name for name in self.node.types(card) if name not in self.node.foreign] == []
            elif rule.functions is not None:
                assert self.node.count(card) == rule.functions
            elif not theirs:
                assert names == sorted(f"NVIDIA {name}" for name, count in rule.types.items() for _ in range(count))

    def end(self) -> None:
        self.node.guests.clear()
        self.node.pods.clear()
        self.node.wants()
        assert self.node.apply() == ()
        made = self.node.made
        assert (made.types, made.mdevs) == ({}, {})
        left = {card.address: set(self.node.types(card)) for card in CARDS}
        assert set().union(*left.values()) <= self.node.foreign
        # Virtual functions stay for the vGPUs that others made of them.
        assert {address for address in made.functions if not left[address]} == set()


def test_whatever_happens_in_whatever_order(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    rounds = Rounds(tmp_path, seed=7)
    for _ in range(MANY if pytestconfig.getoption("--thorough") else FEW):
        happens = rounds.chance.choices(
            (rounds.wish, rounds.guest, rounds.guest_ends, rounds.stranger, rounds.fault, rounds.boot),
            weights=(6, 5, 5, 2, 5, 1),
            k=2,
        )
        for event in happens:
            event()
        rounds.apply()
    rounds.end()
    assert min(rounds.cut, rounds.left, rounds.killed) >= 1
