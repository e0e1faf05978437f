"""A fault at each write, and a kill: nothing is half done, or the next call finishes it."""

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pci.sysfs.functions import DEVICES
from plugin.cards.vgpu_rules import Quota, VGPURule
from tests.kernel import Killed
from tests.plugin.vgpus.node import Node
from tests.vgpu_kernel import Card, a10, b60, l40s

#: A card, what it is cut into, and what then.
CHANGES = {
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
        node.wants(self._first)
        assert node.apply() == ()
        node.wants(self._second)
        return node

    def cut(self, node: Node) -> object:
        """Into what the card is cut, also in the files that a person would look at."""
        place = node.sys / DEVICES / self.card.address
        quotas = [file.read_text() for file in sorted(place.glob("sriov_admin/*/profile/*"))]
        drivers = [link.readlink().name for link in sorted((node.sys / DEVICES).glob("*/driver"))]
        return sorted(node.types(self.card).values()), node.count(self.card), quotas, drivers

    def faults(self, fault: BaseException) -> Iterator[Node]:
        """A node for each write of the change, in the place of which that is raised."""
        node = self.ready("whole")
        self.before, first = self.cut(node), len(node.log) + 1
        assert node.apply() == ()
        self.after = self.cut(node)
        for number in range(first, len(node.log) + 1):
            node = self.ready(number)
            node.instead = {number: fault}.get
            yield node
            node.instead = lambda now: None
            assert node.apply() == ()
            assert self.cut(node) == self.after
            assert (node.wrongs, node.refused) == ([], [])


@pytest.fixture(params=CHANGES)
def change(request: pytest.FixtureRequest, tmp_path: Path) -> Change:
    return Change(tmp_path, request.param)


def test_a_write_that_fails_leaves_the_card_as_it_was_and_the_next_call_cuts_it(change: Change) -> None:
    for node in change.faults(OSError(errno.EIO, os.strerror(errno.EIO))):
        (problem,) = node.apply()
        assert problem.wrong.endswith("and the card is as it was before")
        assert change.cut(node) == change.before


def test_a_kill_at_a_write_is_made_good_by_the_next_call(change: Change) -> None:
    for node in change.faults(Killed()):
        with pytest.raises(Killed):
            node.apply()
    node.wants()
    assert node.apply() == ()
    assert node.count(change.card) == 0
    assert (node.made.types, node.made.mdevs, node.made.functions) == ({}, {}, {})
