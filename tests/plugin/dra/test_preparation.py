"""Claims that are prepared at the same time, late, or only in part."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from plugin.cards.config import Bind, Config, Serve
from plugin.cards.names import PCIIDs
from plugin.dra.checkpoint import Checkpoint, PreparedDevice
from plugin.dra.claims import read_claim
from plugin.dra.status import Statuses, of_devices
from plugin.dra.tasks import ClaimTasks, StillAtWork
from program.errors import ProgramError, Refusal
from tests.conftest import Machine
from tests.kernel import bind, make_nodes
from tests.plugin.dra.cluster import NODE, Cluster, running_cluster
from tests.plugin.dra.inside import Inside, inside, reference
from tests.plugin.dra.test_binding import FIRST, GPU, Node
from tests.plugin.dra.test_binding import node as node
from tests.waiting import allowed, until

NAMES = [f"pci-0000-{bus}-00-0" for bus in ("07", "0f", "47", "4e")]


@pytest.fixture
def cluster(copied_machine: Machine, short_dir: Path) -> Iterator[Cluster]:
    sys = copied_machine("hgx-a100-8-gpu")
    make_nodes(sys, short_dir / "dev")
    with running_cluster(short_dir, sys) as cluster:
        yield cluster


def test_a_slow_api_server_is_waited_for_once_by_claims_that_come_together(cluster: Cluster, pci_ids: PCIIDs) -> None:
    """One after the other, three of eight took more than the 45 s of the kubelet, with answers after 8 s."""

    async def life(driver: Inside) -> None:
        claims = driver.claims()
        other, *together = (reference(cluster.claim(name)) for name in NAMES)
        await claims.prepare(other)
        with cluster.api.silent():
            preparing = [asyncio.create_task(claims.prepare(each)) for each in together]
            await asyncio.to_thread(until, lambda: cluster.api.waiting == len(together))
            # An Unprepare waits for nobody's API server.
            await asyncio.wait_for(claims.unprepare(other), allowed(30))
        await asyncio.gather(*preparing)

    inside(cluster, pci_ids, life)
    assert len(cluster.checkpoint()) == 3


def test_who_asked_is_answered_in_time_and_the_work_goes_on() -> None:
    async def life() -> tuple[str, int]:
        begun, may_end = [], asyncio.Event()

        async def work() -> int:
            begun.append(1)
            await may_end.wait()
            return 7

        at_work = ClaimTasks(within=0.01)
        with pytest.raises(StillAtWork) as late:
            await at_work.run("prepared", "0c6f", "claim vms/gpu", work)
        joined = asyncio.create_task(at_work.run("prepared", "0c6f", "claim vms/gpu", work))
        await asyncio.sleep(0)
        may_end.set()
        assert (await joined, begun) == (7, [1])
        at_work, may_end = ClaimTasks(), asyncio.Event()
        stopped = asyncio.create_task(at_work.run("prepared", "0c6f", "claim vms/gpu", work))
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
        asked_again = allowed(0.5)
        claims = driver.claims(bind_within=0, asked_again=asked_again)
        claim = reference(node.cluster.claim(FIRST))
        with pytest.raises(StillAtWork, match="has not ended within 0 s"):
            await claims.prepare(claim)
        assert claims.is_begun.is_set()
        assert not await claims.reconcile()
        assert driver.watch.snapshot.kept == {}, "the kubelet may ask again"
        await asyncio.sleep(asked_again + 0.1)
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


def test_a_claim_whose_pod_may_run_is_not_given_up_nor_by_the_next_driver(cluster: Cluster, pci_ids: PCIIDs) -> None:
    async def life(driver: Inside) -> None:
        claims, claim = driver.claims(), reference(cluster.claim(NAMES[0]))
        await claims.prepare(claim)
        assert not claims.is_begun.is_set()
        await claims.give_up(claim.uid)
        assert await driver.claims().reconcile()
        assert [*cluster.checkpoint(), *cluster.specifications()] == [claim.uid, claim.uid]

    inside(cluster, pci_ids, life)


def test_a_claim_is_completed_only_by_a_pod_on_this_node_also_after_a_kill_between_its_files_and_that(
    cluster: Cluster, pci_ids: PCIIDs
) -> None:
    async def life(driver: Inside) -> None:
        object_ = cluster.claim(NAMES[0])
        claims, claim = driver.claims(), reference(object_)
        for _ in range(2):
            await claims.make_ready(read_claim(claim, object_, NODE))
            assert cluster.checkpoint()[claim.uid]["completed"] is False
        await claims.prepare(claim)
        checkpoint = Checkpoint(cluster.state, "")
        checkpoint.write({uid: replace(its, completed=False) for uid, its in checkpoint.read().items()})
        await driver.claims().prepare(claim)
        assert cluster.checkpoint()[claim.uid]["completed"] is True

    inside(cluster, pci_ids, life)


def test_a_claim_that_was_begun_and_cannot_be_finished_is_taken_back(cluster: Cluster, pci_ids: PCIIDs) -> None:
    async def life(driver: Inside) -> None:
        object_ = cluster.claim(NAMES[0])
        claims, claim = driver.claims(), reference(object_)
        await claims.make_ready(read_claim(claim, object_, NODE))
        bind(cluster.sys, "0000:07:00.0", "nvidia")
        with pytest.raises(ProgramError, match="is not a device of this node"):
            await claims.prepare(claim)
        assert cluster.checkpoint() == {}

    inside(cluster, pci_ids, life)


def test_nothing_is_written_into_another_claim_of_the_same_name(cluster: Cluster, pci_ids: PCIIDs) -> None:
    async def life(driver: Inside) -> None:
        first, then = (cluster.claim(NAMES[0], name="gpu") for _ in range(2))
        devices = [PreparedDevice("gpu-0", NAMES[0], "0000:07:00.0")]
        for claim, written in ((first, []), (then, NAMES[:1])):
            await Statuses(driver.api, NODE).write(reference(claim), of_devices(devices, "Prepared"))
            assert [*cluster.status(then)] == written

    inside(cluster, pci_ids, life)
