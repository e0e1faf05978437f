"""vGPUs that are made when they are claimed, on a card that behaves as NVIDIA's: tests.vgpu_kernel."""

import asyncio
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pci.address import PCIAddress
from pci.device_metadata import documents
from pci.sysfs.functions import read_host
from plugin.cards.config import Config, Serve
from plugin.cards.names import PCIIDs
from plugin.cards.vgpu_rules import VGPURule, When
from plugin.cards.vgpu_types import plain
from plugin.changes import engine
from plugin.changes.engine import Failed, Roots, Write
from plugin.changes.journal import Journal, JournalFile, VGPUType
from plugin.changes.users import AskUsers, Assignment, KubeletList, Name, users
from plugin.dra.binder import Binder
from plugin.dra.claims import FAILED, read_claim
from plugin.dra.preparation import Claims, DriverSettings
from plugin.dra.publisher import Publisher
from plugin.dra.status import of_devices
from plugin.kinds import vgpus
from plugin.kinds.cut import look
from plugin.kinds.vgpus import NotMade
from plugin.state_files import boot_id
from program.child import spawned
from program.errors import Refusal
from tests.faults import Faults, Killed
from tests.plugin.dra.cluster import NODE, Cluster, running_cluster, wait_until
from tests.plugin.dra.inside import Inside, inside, reference
from tests.vgpu_kernel import L40S, Card, Kernel, l40s

CARD = l40s()
HALF, WHOLE = "vgpu-0000-41-00-0-l40s-24q-{}", "vgpu-0000-41-00-0-l40s-48q-0"
RULE = VGPURule(device="10de:26b9", types={"L40S-24Q": 2, "L40S-48Q": 1}, when=When.CLAIMED)
CONFIG = Config(serve=Serve.DRA, vgpus=(RULE,))
_NOBODY = partial(users, listed=KubeletList(), claimed={})
IN_YAML = 'serve: dra\nvgpus: [{device: "10de:26b9", types: {L40S-24Q: 2, L40S-48Q: 1}, when: claimed}]\n'


class InProcess(Binder):
    """Makes and removes vGPUs in this process, by the writes of a kernel that reacts, with `faults` at each."""

    kernel: Kernel
    faults = Faults()

    async def make_vgpu(self, name: str, card: str, kind: str, config: Config, others: AskUsers) -> None:
        try:
            vgpus.make(self._node(config, others), vgpus.named(name), kind, PCIAddress.parse(card))
        except Failed as failed:
            raise NotMade(*failed.problem) from failed

    async def remove_vgpus(self, names: Iterable[str], config: Config, others: AskUsers) -> None:
        for vgpu in map(vgpus.named, names):
            try:
                vgpus.remove(self._node(config, others), vgpu, self._card(config, vgpu, others))
            except Failed as failed:
                raise Refusal(*failed.problem) from failed

    def _card(self, config: Config, vgpu: Name, others: AskUsers) -> PCIAddress | None:
        return vgpus.card_of(read_host(self.kernel.sys), self._node(config, others), vgpu)

    def _node(self, config: Config, others: AskUsers) -> engine.NodeIO:
        kernel = self.kernel
        journal = JournalFile(self._roots.state, boot_id(kernel.proc))

        def users() -> dict[str, str]:
            return dict(look(kernel.sys, config, journal.read(), kernel.processes, others).users)

        def write(one: Write) -> None:
            kernel.write(one)
            for group in (kernel.sys / "class/vfio").iterdir():
                (kernel.sys.parent / "dev/vfio" / group.name).touch()

        return engine.NodeIO(
            sys=kernel.sys,
            journal=journal,
            write=self.faults.around(write),
            ask=lambda read, sys, *arguments: read(sys, *arguments),
            user=lambda name: users().get(name),
            wait=lambda seconds: None,
        )


class Node:
    """A node with a card for claims' vGPUs, and its cluster."""

    def __init__(self, cluster: Cluster, kernel: Kernel, card: Card) -> None:
        self.cluster, self.kernel, self.card = cluster, kernel, card
        self.file = cluster.directory / "former/journal.json"

    def claims(self, driver: Inside) -> Claims:
        """A driver that has just begun."""
        settings = DriverSettings(
            node=NODE,
            state=self.cluster.state,
            cdi=self.cluster.cdi,
            registry=self.cluster.kubelet.registry,
            kubeconfig=None,
            boot=boot_id(self.kernel.proc),
        )
        sources = driver.watch.sources
        self.binder = InProcess(sources.sys, sources.state, driver.watch.counters.binds)
        self.binder.kernel = self.kernel
        partitions = driver.claims()._partitions
        claims = Claims(driver.watch, driver.api, partitions, settings, binder=self.binder, asked_again=0)
        claims.recall()
        return claims

    @property
    def types(self) -> list[str]:
        return sorted(plain(name) for name in self.kernel.types(self.card).values())

    def ours(self) -> list[str]:
        made = json.loads(self.file.read_text()) if self.file.exists() else {"types": (), "mdevs": ()}
        return sorted([*made["types"], *made["mdevs"]])

    def is_as_before(self) -> bool:
        there = (self.types, self.ours(), self.cluster.checkpoint(), self.cluster.specifications())
        return not any(there)


def node_with(directory: Path, card: Card) -> Iterator[Node]:
    kernel = Kernel(directory, card)
    if card.possible:
        kernel.on(card)
    nodes = directory / "dev/vfio"
    nodes.mkdir(parents=True)
    (nodes / "vfio").touch()
    for function in read_host(kernel.sys).functions.values():
        (nodes / str(function.iommu_group)).touch()
    with running_cluster(directory, kernel.sys) as cluster:
        yield Node(cluster, kernel, card)


@pytest.fixture
def node(short_dir: Path) -> Iterator[Node]:
    yield from node_with(short_dir, CARD)


@pytest.fixture
def still(short_dir: Path) -> Iterator[Node]:
    """Whose files only take what is written: types of one digit, so that no digit of the one before stays."""
    types = {3: L40S[1155], 4: L40S[1156]}
    yield from node_with(short_dir, Card(bus=0x41, types=types))


async def published(driver: Inside) -> None:
    await Publisher(driver.watch, driver.api, NODE, lambda: True, lambda: True).publish()


def test_a_card_is_published_as_what_it_can_become(node: Node, pci_ids: PCIIDs) -> None:
    async def life(driver: Inside) -> None:
        await published(driver)
        devices = node.cluster.published()
        assert list(devices) == [HALF.format(0), HALF.format(1), WHOLE]
        its = devices[HALF.format(1)]
        assert {name: next(iter(each.values())) for name, each in its["attributes"].items()} == {
            "device": "10de:26b9",
            "driver": "nvidia",
            "functions": 1,
            "model": "NVIDIA L40S-24Q",
            "parent": "0000:41:00.0",
            "productName": "NVIDIA L40S-24Q",
            "resource": "nvidia.com/NVIDIA_L40S-24Q",
            "type": "vgpu",
            "vendor": "10de",
            "resource.kubernetes.io/pcieRoot": "pci0000:40",
        }
        assert its["capacity"] == {"memory": {"value": "24Gi"}}
        slices = node.cluster.api.slices(NODE)
        assert [("devices" in each["spec"], each["spec"]["pool"]["resourceSliceCount"]) for each in slices] == [
            (True, 2),
            (False, 2),
        ]
        (counters,) = slices[1]["spec"]["sharedCounters"]
        values = {name: int(each["value"]) for name, each in counters["counters"].items()}
        assert values == {"l40s-48q-0": 2, "size-24": 2, "size-48": 1}
        node.kernel.write_type(CARD.function(8), 1155)  # by somebody else
        await driver.watch.look_again()
        await published(driver)
        (counters,) = node.cluster.api.slices(NODE)[1]["spec"]["sharedCounters"]
        values = {name: int(each["value"]) for name, each in counters["counters"].items()}
        assert values == {"l40s-48q-0": 2, "size-24": 1, "size-48": 0}
        assert "pci-0000-41-01-3" in node.cluster.published()  # for whoever wants it, as ever

    inside(node.cluster, pci_ids, life, CONFIG)


@pytest.mark.parametrize("way", ["takes_counters", "refuses_counters"])
def test_where_the_api_server_takes_no_counters_nothing_is_published_and_the_log_says_it(
    node: Node, pci_ids: PCIIDs, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    setattr(node.cluster.api, way, way == "refuses_counters")

    async def life(driver: Inside) -> None:
        node.kernel.write_type(CARD.function(8), 1155)
        await driver.watch.look_again()
        publisher = Publisher(driver.watch, driver.api, NODE, lambda: True, lambda: True)
        await publisher.publish()
        assert list(node.cluster.published()) == ["pci-0000-41-01-3"]
        writes = node.cluster.api.writes
        await publisher.publish()
        assert node.cluster.api.writes == writes

    inside(node.cluster, pci_ids, life, CONFIG)
    (line,) = [each.getMessage() for each in caplog.records if "counters" in each.getMessage()]
    assert "turn on DRAPartitionableDevices" in line


def test_a_claims_vgpu_is_made_told_and_taken_away(node: Node, pci_ids: PCIIDs) -> None:
    async def life(driver: Inside) -> None:
        await published(driver)
        claims = node.claims(driver)
        claim = node.cluster.claim(HALF.format(0), HALF.format(1))
        prepared = await claims.prepare(reference(claim))
        assert [(each.name, each.id) for each in prepared] == [
            (HALF.format(number), CARD.function(number + 1)) for number in range(2)
        ]
        assert (node.types, node.ours()) == (["L40S-24Q"] * 2, [CARD.function(1), CARD.function(2)])
        (specification,) = node.cluster.specifications().values()
        edits = specification["devices"][1]["containerEdits"]
        assert [each["path"] for each in edits["deviceNodes"]] == ["/dev/vfio/vfio", f"/dev/vfio/{0x41 * 64 + 2}"]
        (told,) = next(documents(Path(edits["mounts"][0]["hostPath"]).read_text()))["requests"][0]["devices"]
        assert told["name"] == HALF.format(1)
        assert told["attributes"]["resource.kubernetes.io/pciBusID"] == {"string": CARD.function(2)}
        assert told["attributes"]["parent"] == {"string": CARD.address}
        writes = len(node.kernel.log)
        assert await claims.prepare(reference(claim)) == prepared
        await published(driver)
        assert list(node.cluster.published()) == [HALF.format(0), HALF.format(1), WHOLE]  # and no virtual function
        users = {each.id: driver.watch.snapshot.user(each) for each in driver.watch.snapshot.inventory.offered}
        assert users == dict.fromkeys((CARD.function(1), CARD.function(2)), "ResourceClaim vms/claim-0")
        with pytest.raises(Refusal, match="can become no further vGPU of type L40S-48Q"):
            await claims.prepare(reference(node.cluster.claim(WHOLE)))
        assert len(node.kernel.log) == writes
        for _ in range(2):
            await claims.unprepare(reference(claim))
            assert node.is_as_before()
        assert driver.watch.snapshot.inventory.offered == ()
        await claims.prepare(reference(node.cluster.claim(WHOLE)))
        assert node.types == ["L40S-48Q"]

    inside(node.cluster, pci_ids, life, CONFIG)
    assert (node.kernel.wrongs, node.kernel.refused) == ([], [])


def test_a_vgpu_is_made_before_its_pod_comes_and_taken_away_if_none_does(node: Node, pci_ids: PCIIDs) -> None:
    async def life(driver: Inside) -> None:
        await published(driver)
        claims = node.claims(driver)
        allocated = node.cluster.claim(HALF.format(0))
        claim = reference(allocated)
        (made,) = await claims.make_ready(read_claim(claim, allocated, NODE))
        assert (node.types, node.cluster.specifications()) == (["L40S-24Q"], {})
        assert (told := of_devices([made], "Bound")(made.name)) is not None
        assert told.message == f"{CARD.function(1)}: made for this claim"
        await claims.give_up(claim.uid)
        assert node.is_as_before()
        assert await claims.make_ready(read_claim(claim, allocated, NODE)) == (made,)
        assert await claims.prepare(claim) == (made,)
        assert len(node.cluster.specifications()) == 1

    inside(node.cluster, pci_ids, life, CONFIG)


def test_a_card_that_cannot_make_a_vgpu_is_not_tried_again_at_once(node: Node, pci_ids: PCIIDs) -> None:
    """The scheduler takes another card; vGPUs of other types are on offer as before."""

    async def life(driver: Inside) -> None:
        await published(driver)
        claims = node.claims(driver)
        await claims.prepare(reference(node.cluster.claim(HALF.format(0))))
        whole = node.cluster.claim(WHOLE)
        with pytest.raises(NotMade, match="can become no further vGPU of type L40S-48Q"):
            await claims.make_ready(read_claim(reference(whole), whole, NODE))
        await published(driver)
        devices = node.cluster.published()
        taints = {name: [taint["value"] for taint in its.get("taints", ())] for name, its in devices.items()}
        assert {name for name, its in taints.items() if its} == {WHOLE}
        assert taints[WHOLE][0].startswith("could-not-be-made-0000-41-00.0")

    inside(node.cluster, pci_ids, life, CONFIG)


def test_what_a_guest_has_open_is_not_taken_away_and_others_vgpus_never_are(node: Node, pci_ids: PCIIDs) -> None:
    async def life(driver: Inside) -> None:
        node.kernel.write_type(CARD.function(1), 1155)
        await driver.watch.look_again()
        claims, claim = node.claims(driver), reference(node.cluster.claim(HALF.format(0)))
        (device,) = await claims.prepare(claim)
        assert device.id == CARD.function(2)
        node.kernel.guests[device.id] = "qemu-system-x86 (pid 4711)"
        with pytest.raises(Refusal, match=r"is in use by qemu-system-x86 \(pid 4711\)"):
            await claims.unprepare(claim)
        trouble = driver.watch.snapshot.reason(driver.watch.snapshot.inventory.by_id[device.id])
        assert trouble is not None
        assert "was not taken away" in trouble.wrong
        node.kernel.guests.clear()
        await claims.unprepare(claim)
        # Somebody makes theirs of a function that was ours.
        claim = reference(node.cluster.claim(HALF.format(0)))
        await claims.prepare(claim)
        node.kernel.write_type(CARD.function(2), 0)
        node.kernel.write_type(CARD.function(1), 0)
        node.kernel.write_type(CARD.function(2), 1145)
        await claims.unprepare(claim)
        assert (node.types, node.ours()) == (["L40S-1B"], [])

    inside(node.cluster, pci_ids, life, CONFIG)
    assert node.kernel.wrongs == []


#: A kill before (1) and after (2) the write that makes a vGPU, and before (3) and after (4) the one that takes it away;
#: and what happens then.
KILLS = pytest.mark.parametrize(
    ("then", "at"), [(then, at) for then in ("retry", "unprepare", "nothing", "boot") for at in range(1, 5)]
)


def followed_after_a_kill(
    node: Node, pci_ids: PCIIDs, config: Config, name: str, kind: str, at: int, then: str
) -> None:
    """Check that the next driver goes on with what a killed one did for the device of that name, or takes it back."""
    faults = Faults(at)

    async def life(driver: Inside) -> None:
        claims, claim = node.claims(driver), reference(node.cluster.claim(name))
        node.binder.faults = faults
        if at > 2:
            await claims._prepare_allocated(claim)
        with pytest.raises(Killed):
            await (claims._take_back_alone(claim.uid) if at > 2 else claims._prepare_allocated(claim))
        assert faults.moments == at
        assert len(node.ours()) == 1  # written down before the hardware
        if then == "boot":
            node.kernel.boot()
            if node.card.possible:
                node.kernel.on(node.card)
        await driver.watch.look_again()
        claims = node.claims(driver)
        if then == "retry":
            (device,) = await claims.prepare(claim)
            assert (node.types, node.ours()) == ([kind], [device.id])
        elif then == "nothing" and at > 2:
            return  # its pod may have it: the kubelet asks again
        if then in ("retry", "unprepare"):
            await claims.unprepare(claim)
        node.cluster.deallocate(node.cluster.claims["claim-0"])
        await claims.reconcile()
        assert node.is_as_before() if then != "boot" else (node.types, node.cluster.specifications()) == ([], {})

    inside(node.cluster, pci_ids, life, config)
    assert (node.kernel.wrongs, node.kernel.refused) == ([], [])


@KILLS
def test_after_a_kill_at_each_write_the_next_driver_goes_on_or_takes_back(
    node: Node, pci_ids: PCIIDs, at: int, then: str
) -> None:
    followed_after_a_kill(node, pci_ids, CONFIG, HALF.format(0), "L40S-24Q", at, then)


def test_what_no_claim_has_any_more_goes(node: Node, pci_ids: PCIIDs) -> None:
    async def life(driver: Inside) -> None:
        await node.claims(driver).prepare(reference(node.cluster.claim(HALF.format(0))))
        node.kernel.write_type(CARD.function(5), 1155)
        (node.cluster.state / "checkpoint.json").unlink()
        claims = node.claims(driver)
        await claims.reconcile()
        assert (node.types, node.ours()) == (["L40S-24Q"], [])

    inside(node.cluster, pci_ids, life, CONFIG)
    assert node.kernel.types(CARD) == {CARD.function(5): "NVIDIA L40S-24Q"}


def test_a_vgpu_of_ours_that_the_kubelet_lists_for_a_pod_is_not_taken_away(node: Node, pci_ids: PCIIDs) -> None:
    async def life(driver: Inside) -> None:
        await node.claims(driver).prepare(reference(node.cluster.claim(HALF.format(0))))
        (node.cluster.state / "checkpoint.json").unlink()
        (vgpu,) = node.ours()
        given = frozenset({Assignment("default/vm", "nvidia.com/NVIDIA_L40S-24Q", vgpu)})
        driver.watch.see(replace(driver.watch.snapshot, assignments=given))
        await node.claims(driver).reconcile()
        assert (node.types, node.ours()) == (["L40S-24Q"], [vgpu])

    inside(node.cluster, pci_ids, life, CONFIG)


def test_a_vgpu_that_a_pod_was_given_since_stays_when_its_claim_ends_until_the_pod_does(
    node: Node, pci_ids: PCIIDs
) -> None:
    async def life(driver: Inside) -> None:
        claims, claim = node.claims(driver), reference(node.cluster.claim(HALF.format(0)))
        await claims.prepare(claim)
        (vgpu,) = node.ours()
        given = frozenset({Assignment("vms/vm-a", "example.com/vgpu", vgpu)})
        driver.watch.see(replace(driver.watch.snapshot, assignments=given))
        with pytest.raises(Refusal, match=f"{vgpu}: is in use by pod vms/vm-a; "):
            await claims.unprepare(claim)
        assert node.types == ["L40S-24Q"]
        driver.watch.see(replace(driver.watch.snapshot, assignments=frozenset()))
        await claims.unprepare(claim)

    inside(node.cluster, pci_ids, life, CONFIG)
    assert node.is_as_before()


def test_a_card_whose_files_cannot_be_read_is_an_error_for_each_of_its_vgpus(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, CARD)
    kernel.on(CARD)
    roots = Roots.beside(kernel.sys, tmp_path / "state")
    functions = [str(one.address) for one in read_host(kernel.sys).functions.values() if one.is_virtual][:2]
    types = {each: VGPUType(1155, "NVIDIA L40S-24Q") for each in functions}
    ours = Journal(boot_id(kernel.proc), types=types)
    roots.journal.write(ours)
    (kernel.sys / "bus/pci/devices/0000:41:00.0/sriov_totalvfs").write_text("x\n")
    work = partial(vgpus.remove_for_claims, roots, CONFIG, [*map(vgpus.named, functions)], _NOBODY)
    with pytest.raises(Refusal) as refused:
        spawned("gpu-plugin remove", work).answer()
    assert [problem.subject for problem in refused.value.problems] == 2 * [
        f"{kernel.sys}/bus/pci/devices/0000:41:00.0/sriov_totalvfs"
    ]
    assert roots.journal.read() == ours


def test_of_two_claims_at_once_for_the_last_place_one_has_it(node: Node, pci_ids: PCIIDs) -> None:
    async def life(driver: Inside) -> None:
        claims = node.claims(driver)
        both = [reference(node.cluster.claim(WHOLE)), reference(node.cluster.claim(WHOLE))]
        answers = await asyncio.gather(*map(claims.prepare, both), return_exceptions=True)
        (refused,) = [each for each in answers if isinstance(each, Refusal)]
        assert "is prepared for claim" in str(refused)

    inside(node.cluster, pci_ids, life, CONFIG)
    assert node.types == ["L40S-48Q"]


# As processes.


def test_the_driver_itself_makes_one_before_its_pod_comes(still: Node) -> None:
    api = still.cluster.api
    api.takes_conditions = True
    with still.cluster.driver(IN_YAML, "--state", still.cluster.directory / "former"):
        wait_until(lambda: all(its.get("bindingConditions") for its in still.cluster.published().values() or [{}]))
        claim = still.cluster.claim(HALF.format(0))
        wait_until(lambda: "Ready" in still.cluster.status(claim).get(HALF.format(0), {}))
        assert still.types == ["L40S-24Q"]
        still.cluster.deallocate(claim)
        wait_until(still.is_as_before)


def test_a_change_that_is_at_work_is_no_fault_of_a_card(still: Node) -> None:
    still.cluster.api.takes_conditions = True
    state = still.cluster.directory / "former"
    with still.cluster.driver(IN_YAML, "--state", state):
        wait_until(lambda: all(its.get("bindingConditions") for its in still.cluster.published().values() or [{}]))
        with JournalFile(state, boot_id(still.kernel.proc)).alone():
            claim = still.cluster.claim(HALF.format(0))
            wait_until(lambda: FAILED in still.cluster.status(claim).get(HALF.format(0), {}))
            assert "is at work" in still.cluster.status(claim)[HALF.format(0)][FAILED]
        other = still.cluster.claim(HALF.format(1))
        wait_until(lambda: "Ready" in still.cluster.status(other).get(HALF.format(1), {}))
        assert not any("taints" in its for its in still.cluster.published().values())


def test_the_driver_itself_makes_and_removes_them_and_a_killed_one_is_followed(still: Node) -> None:
    def answer(claim: dict[str, Any]) -> str:
        (prepared,) = still.cluster.kubelet.prepare(claim).values()
        return prepared.error

    state = ("--state", still.cluster.directory / "former")
    with still.cluster.driver(IN_YAML, *state) as plugin:
        still.cluster.wait_for(HALF.format(0), HALF.format(1), WHOLE)
        claim = still.cluster.claim(HALF.format(1))
        assert answer(claim) == ""
        assert (still.types, still.ours()) == (["L40S-24Q"], [still.card.function(1)])
        plugin.kill()
    with still.cluster.driver(IN_YAML, *state):
        still.cluster.wait_for(HALF.format(0), HALF.format(1), WHOLE)
        wait_until(lambda: HALF.format(1) in still.cluster.kubelet.health())
        assert answer(claim) == ""
        assert still.types == ["L40S-24Q"]
        assert set(still.cluster.kubelet.unprepare(claim).values()) == {""}
        assert still.is_as_before()
