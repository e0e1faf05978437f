"""vGPUs of GPU instances, made when they are claimed: the instances are the admin's (tests.vgpu_kernel)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from plugin.cards.config import Config, Serve
from plugin.cards.names import PCIIDs
from plugin.cards.vgpu_rules import VGPURule, When
from plugin.cards.vgpu_types import plain
from program.errors import Refusal
from tests.plugin.dra.inside import Inside, inside, reference
from tests.plugin.dra.test_vgpus import Node, node_with, published
from tests.plugin.kinds.cut import Node as Cut
from tests.vgpu_kernel import DC, dc

CARD = dc()
QUARTER, HALF = (plain(DC[number][0]) for number in (1503, 1504))
RULE = VGPURule(device="10de:2bb5", types={QUARTER: 2, HALF: 1}, when=When.CLAIMED)
CONFIG = Config(serve=Serve.DRA, vgpus=(RULE,))
NAME = "vgpu-0000-41-00-0-rtx-pro-6000-blackwell-dc-"
QUARTERS, HALVES = [f"{NAME}1-24q-0", f"{NAME}1-24q-1"], [f"{NAME}2-48q-0"]


@pytest.fixture
def node(short_dir: Path) -> Iterator[Node]:
    yield from node_with(short_dir, CARD)


def test_sizes_of_different_instances_go_together(node: Node, pci_ids: PCIIDs) -> None:
    node.kernel.make_instances(CARD, _1g=2, _2g=1)

    async def life(driver: Inside) -> None:
        await published(driver)
        assert list(node.cluster.published()) == [*QUARTERS, *HALVES]
        claims, claim = node.claims(driver), node.cluster.claim(*QUARTERS, *HALVES)
        assert len(await claims.prepare(reference(claim))) == 3
        assert node.types == [QUARTER, QUARTER, HALF]
        await claims.unprepare(reference(claim))
        assert node.is_as_before()

    inside(node.cluster, pci_ids, life, CONFIG)
    assert (node.kernel.wrongs, node.kernel.refused) == ([], [])


def test_without_its_instance_a_claim_is_told_what_to_make_and_nothing_is_left(node: Node, pci_ids: PCIIDs) -> None:
    node.kernel.make_instances(CARD, _1g=1)

    async def life(driver: Inside) -> None:
        claims = node.claims(driver)
        claim = reference(node.cluster.claim(QUARTERS[0], HALVES[0]))
        with pytest.raises(Refusal) as refused:
            await claims.prepare(claim)
        assert refused.value.problem == (
            "0000:41:00.0",
            f"has no GPU instance for a vGPU of type {HALF}",
            "make one, of the type's profile in nvidia-smi vgpu -s -v: nvidia-smi mig -i 0000:41:00.0 -cgi PROFILE -C",
        )
        assert node.is_as_before()  # the quarter too
        node.kernel.make_instances(CARD, _1g=1, _2g=1)
        await claims.prepare(claim)
        assert node.types == [QUARTER, HALF]

    inside(node.cluster, pci_ids, life, CONFIG)
    assert (node.kernel.wrongs, node.kernel.refused) == ([], [])


def test_apply_turns_the_functions_on_and_leaves_instances_to_the_admin(tmp_path: Path) -> None:
    node = Cut(tmp_path, CARD)
    node.wants(RULE)
    assert node.apply() == ()
    assert (node.count(CARD), node.types(CARD), node.steps()) == (CARD.possible, {}, [])
