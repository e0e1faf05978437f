"""Claims that are prepared at the same time, late, or only in part."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugin.cards.config import Bind, Config, Serve
from plugin.cards.names import PCIIDs
from plugin.dra.work import StillAtWork, Work
from program.errors import Refusal
from tests.conftest import Machine
from tests.kernel import bind, make_nodes
from tests.plugin.dra.cluster import Cluster, running_cluster
from tests.plugin.dra.inside import Inside, inside, reference
from tests.plugin.dra.test_binding import FIRST, GPU, Node
from tests.plugin.dra.test_binding import node as node

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

NAMES = [f"pci-0000-{bus}-00-0" for bus in ("07", "0f", "47", "4e")]


@pytest.fixture
def cluster(copied_machine: Machine, short_dir: Path) -> Iterator[Cluster]:
    sys = copied_machine("hgx-a100-8-gpu")
    make_nodes(sys, short_dir / "dev")
    with running_cluster(short_dir, sys) as cluster:
        yield cluster


def test_a_slow_api_server_is_waited_for_once_by_claims_that_come_together(cluster: Cluster, pci_ids: PCIIDs) -> None:
    """One after the other, three of eight took more than the 45 s of the kubelet, with answers after 8 s."""

    async def life(driver: Inside) -> float:
        loop, claims = asyncio.get_running_loop(), driver.claims()
        other, *together = (reference(cluster.claim(name)) for name in NAMES)
        await claims.prepare(other)
        cluster.api.delay = 1.5
        began = loop.time()
        preparing = [asyncio.create_task(claims.prepare(each)) for each in together]
        await asyncio.sleep(0)
        await claims.unprepare(other)
        assert not any(task.done() for task in preparing), "an Unprepare waits for nobody's API server"
        await asyncio.gather(*preparing)
        return loop.time() - began

    assert inside(cluster, pci_ids, life) < 3 * 1.5
    assert len(cluster.checkpoint()) == 3


def test_who_asked_is_answered_in_time_and_the_work_goes_on() -> None:
    async def life() -> tuple[str, int]:
        begun, may_end = [], asyncio.Event()

        async def work() -> int:
            begun.append(1)
            await may_end.wait()
            return 7

        at_work = Work(within=0.01)
        with pytest.raises(StillAtWork) as late:
            await at_work.done("prepared", "0c6f", "claim vms/gpu", work)
        joined = asyncio.create_task(at_work.done("prepared", "0c6f", "claim vms/gpu", work))
        await asyncio.sleep(0)
        may_end.set()
        assert (await joined, begun) == (7, [1])
        at_work, may_end = Work(), asyncio.Event()
        stopped = asyncio.create_task(at_work.done("prepared", "0c6f", "claim vms/gpu", work))
        await asyncio.sleep(0.01)
        await at_work.stop("prepared", "0c6f")
        with pytest.raises(Refusal, match="is not to be prepared any more"):
            await stopped
        return str(late.value), len(begun)

    told, begun = asyncio.run(life())
    assert told.startswith("claim vms/gpu: is not prepared within 0.01 s: ")
    assert begun == 2


def test_a_claim_that_is_begun_and_not_asked_for_again_gives_its_card_back(node: Node, pci_ids: PCIIDs) -> None:
    async def life(driver: Inside) -> None:
        claims = driver.claims(bind_within=0, asked_again=1)
        claim = reference(node.cluster.claim(FIRST))
        with pytest.raises(StillAtWork, match="has not ended within 0 s"):
            await claims.prepare(claim)
        assert claims.is_begun.is_set()
        assert not await claims.reconcile()
        assert driver.watch.snapshot.kept == {}, "the kubelet may ask again"
        await asyncio.sleep(1.1)
        assert not await claims.reconcile()
        assert driver.watch.snapshot.kept.keys() == {GPU}, "it is being given back"
        patient = driver.claims()
        while not await patient.reconcile():  # the other's process is at work
            await asyncio.sleep(0.1)

    config = Config(serve=Serve.DRA, bind=Bind.WHEN_CLAIMED)
    inside(node.cluster, pci_ids, life, config)
    assert (node.cluster.checkpoint(), node.is_daily()) == ({}, True)


def test_a_claim_whose_pod_may_run_is_not_prepared_anew(cluster: Cluster, pci_ids: PCIIDs) -> None:
    async def life(driver: Inside) -> None:
        claims, claim = driver.claims(), reference(cluster.claim(NAMES[0]))
        devices = await claims.prepare(claim)
        written = {file: file.stat().st_mtime_ns for file in [*cluster.cdi.iterdir(), *cluster.state.rglob("*.json")]}
        attribute = cluster.sys / "bus/pci/devices/0000:07:00.0"
        bind(cluster.sys, attribute.name, "nvidia")  # neither is its card looked at
        assert await claims.prepare(claim) == devices
        assert {file: file.stat().st_mtime_ns for file in written} == written

    inside(cluster, pci_ids, life)
