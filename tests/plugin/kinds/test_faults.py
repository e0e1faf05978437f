"""A fault at each write, and a kill: nothing is half done, or the next call finishes it."""

from dataclasses import replace
from pathlib import Path

import pytest

from pci.sysfs.functions import DEVICES
from plugin.cards.vgpu_rules import Quota, VGPURule
from plugin.changes.journal import Journal
from tests.faults import Killed, refuses
from tests.plugin.kinds.cut import Node
from tests.vgpu_kernel import Card, a10, b60, l40s

#: A card, what it is cut into, and what then; None is nothing.
CHANGES: dict[str, tuple[Card, VGPURule | None, VGPURule | None]] = {
    "from nothing": (l40s(), None, VGPURule(vendor="10de", types={"L40S-24Q": 1, "L40S-8Q": 1}, mixed_sizes=True)),
    "to nothing": (l40s(), VGPURule(vendor="10de", types={"L40S-24Q": 1}), None),
    "types": (l40s(), VGPURule(vendor="10de", types={"L40S-24Q": 1}), VGPURule(vendor="10de", types={"L40S-12Q": 2})),
    "mdevs": (a10(), VGPURule(vendor="10de", types={"A10-8Q": 1}), VGPURule(vendor="10de", types={"A10-4Q": 2})),
    "functions": (
        b60(),
        VGPURule(vendor="8086", functions=1, quota={Quota.VRAM: 1 << 30}),
        VGPURule(vendor="8086", functions=2, quota={Quota.VRAM: 2 << 30}),
    ),
}


class Change:
    """A node whose card is cut, and is to be cut anew."""

    def __init__(self, directory: Path, kind: str) -> None:
        card, self._first, self._second = CHANGES[kind]
        self.card: Card = replace(card, possible=2)
        self._directory = directory

    def ready(self, name: object) -> Node:
        directory = self._directory / str(name)
        directory.mkdir()
        node = Node(directory, self.card)
        for rule in (self._first, self._second):
            assert node.apply() == ()
            node.wants(*([] if rule is None else [rule]))
        node.script = ["unbinds"]
        return node

    def cut(self, node: Node) -> object:
        """Into what the card is cut, also in the files that a person would look at."""
        place = node.sys / DEVICES / self.card.address
        quotas = [file.read_text() for file in sorted(place.glob("sriov_admin/*/profile/*"))]
        drivers = [link.readlink().name for link in sorted((node.sys / DEVICES).glob("*/driver"))]
        return sorted(node.types(self.card).values()), node.count(self.card), quotas, drivers

    def whole(self) -> tuple[list[int], int]:
        """Cut a card anew without a fault; return the numbers of its writes, but for what is tried again after
        sriov-manage, and how many moments for a kill it has."""
        node = self.ready("whole")
        self.before, first = self.cut(node), len(node.log) + 1
        assert node.apply() == ()
        self.after = self.cut(node)
        lines = enumerate(node.log[first - 1 :], first)
        again = f"echo {self.card.address} > /sys/bus/pci/drivers_probe"
        return [number for number, line in lines if line.startswith("echo") and line != again], node.faults.moments

    def finish(self, node: Node) -> None:
        """The next call cuts the card as if nothing had been."""
        node.instead, node.kill_at, node.script = refuses(), 0, []
        assert node.apply() == ()
        assert self.cut(node) == self.after
        assert (node.wrongs, node.refused) == ([], [])


@pytest.fixture(params=CHANGES)
def change(request: pytest.FixtureRequest, tmp_path: Path) -> Change:
    return Change(tmp_path, request.param)


def test_a_write_that_fails_leaves_the_card_as_it_was_and_the_next_call_cuts_it(change: Change) -> None:
    writes, _ = change.whole()
    for number in writes:
        node = change.ready(number)
        node.instead = refuses(number)
        (problem,) = node.apply()
        assert problem.wrong.endswith("and the card is as it was before")
        assert change.cut(node) == change.before
        change.finish(node)


def test_a_kill_at_any_moment_is_made_good_by_the_next_call(change: Change) -> None:
    _, moments = change.whole()
    for number in range(1, moments + 1):
        node = change.ready(number)
        node.kill_at = number
        with pytest.raises(Killed):
            node.apply()
        change.finish(node)
        node.wants()
        assert node.apply() == ()
        assert node.count(change.card) == 0
        assert node.journal == Journal(node.journal.boot)
