"""A vendor of virtual functions is a row: one that nobody knows is added here, and its cards are cut and given back."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from pci.vgpus import CutCard
from plugin.cards.vgpu_rules import VGPURule
from plugin.changes.engine import NodeChange
from plugin.kinds.vgpus import Plan
from plugin.kinds.virtual_function import VENDORS, Vendor, given_back, wanted
from program.problem import Problem
from tests.plugin.kinds.cut import Node
from tests.vgpu_kernel import b60


def _fixed(card: CutCard, count: int) -> Problem | None:
    return None if len(card.functions) == count else Problem(str(card.address), "is as it left the factory", "buy one")


#: Acme's driver has a taker of its own. Ajax's takes no number.
WITH_ACME: Mapping[str, Vendor] = {
    **VENDORS,
    "acme": Vendor(takers=("acme-vfio-pci", "vfio-pci")),
    "ajax": Vendor(counts=_fixed),
}


def node_of(directory: Path, driver: str, *drivers: str) -> Node:
    node = Node(directory, b60(driver=driver), drivers=drivers)
    node.wants(VGPURule(vendor="8086", functions=2))
    return node


def asked(node: Node, count: int) -> tuple[NodeChange | Problem, ...]:
    survey = node.survey()
    (card,) = survey.cards
    return tuple(wanted(survey, card, count, {}, WITH_ACME) if count else given_back(survey, card))


def done(node: Node, *changes: NodeChange | Problem) -> tuple[Problem, ...]:
    its = tuple(each for each in changes if isinstance(each, NodeChange))
    assert its == changes
    return node.carry_out(Plan({node.survey().cards[0].address: its}, ()))


def test_its_cards_are_cut_and_given_back_as_those_of_others(tmp_path: Path) -> None:
    node = node_of(tmp_path, "acme", "vfio-pci", "acme-vfio-pci")
    changes = asked(node, 2)
    assert list(map(str, changes)) == [
        "keep the host's drivers from new virtual functions",
        "0 virtual functions -> 2",
        "let the host's drivers take new virtual functions",
        "give its virtual functions to acme-vfio-pci",
    ]
    assert done(node, *changes) == ()
    assert [function.driver for function in node.survey().cards[0].functions] == ["acme-vfio-pci"] * 2
    assert asked(node, 2) == ()
    assert done(node, *asked(node, 0)) == ()
    assert (node.survey().cards[0].functions, node.journal.functions) == ((), {})


def test_without_its_own_taker_vfio_gets_them(tmp_path: Path) -> None:
    *_, last = asked(node_of(tmp_path, "acme", "vfio-pci"), 2)
    assert str(last) == "give its virtual functions to vfio-pci"


def test_a_driver_that_takes_no_number_says_so_in_a_small_function(tmp_path: Path) -> None:
    node = node_of(tmp_path, "ajax", "vfio-pci")
    assert [str(each) for each in asked(node, 2)] == ["0000:03:00.0: is as it left the factory; buy one"]


@pytest.mark.parametrize(("driver", "taker"), [("xe", "xe-vfio-pci"), ("i915", "vfio-pci")])
def test_intels_own_taker_is_for_functions_of_xe_alone(driver: str, taker: str, tmp_path: Path) -> None:
    *_, last = asked(node_of(tmp_path, driver, "vfio-pci", "xe-vfio-pci"), 2)
    assert str(last) == f"give its virtual functions to {taker}"
