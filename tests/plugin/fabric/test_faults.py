"""Whatever fails at whichever step: the plugin is killed, the disk is full, the manager errs or does not answer.

The manager, the disk and the clock are the plugin's arguments. test_rounds.py has the same by chance, with processes.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from plugin.fabric.abi import Code
from plugin.fabric.activations import Owners
from plugin.fabric.fabric_manager import ManagerError, Unanswered
from plugin.fabric.ownership import Partitions
from plugin.fabric.partitions import Partition, Table
from program.errors import Refusal
from tests.fabric.standin import H100, Manager
from tests.faults import Faults, Killed
from tests.plugin.fabric.node import Node, run

FIRST, SETS = H100


FULL = Refusal("partitions.json", "cannot be written: No space left on device", "")
UNANSWERED = Unanswered("the Fabric Manager", "does not answer within 45 s", "")
ERROR = ManagerError("the Fabric Manager", "table", Code.GENERIC_ERROR)


class InMemory:
    """The node with a manager, a disk and a clock in memory, and with `faults` of what the manager is asked and of
    writes. A disk that is full and a manager's error mean that nothing was done."""

    def __init__(self, kubelet: Node, error: Exception | None = None, at: int = 0) -> None:
        self.kubelet, self.faults = kubelet, Faults(at, error)
        self.time = 1000.0
        self.active: set[int] = set()
        self.owners: Owners | None = None
        self.claims: dict[str, set[int]] = {}

    @property
    def guests(self) -> list[set[int]]:
        return [*self.kubelet.pods.values(), *self.claims.values()]

    def partitions(self) -> Partitions:
        return self.kubelet.partitions(60, manager=lambda *_: self, file=self, now=lambda: self.time)

    # The disk.

    def read(self) -> Owners | None:
        return self.owners

    def write(self, value: Owners) -> None:
        self.faults.moment(can_fail=self.faults.error is FULL)
        self.owners = value
        self.faults.moment(can_fail=False)

    # The manager.

    async def table(self) -> Table:
        self.faults.moment(can_fail=self.faults.error is not FULL)
        numbered = enumerate(SETS, start=FIRST)
        return Table(tuple(Partition(number, modules, number in self.active) for number, modules in numbered))

    async def activate(self, partition: Partition) -> None:
        assert self.owners is not None
        assert self.owners.of(partition.id) is not None, "it is written down before"
        self.faults.moment(can_fail=self.faults.error is not FULL)
        if any(set(SETS[each - FIRST]) & set(partition.modules) for each in self.active):
            raise ManagerError("it", "activate", Code.IN_USE)
        self.active.add(partition.id)
        self.faults.moment(can_fail=self.faults.error is UNANSWERED)

    async def deactivate(self, partition: Partition) -> None:
        assert not any(guest & set(partition.modules) for guest in self.guests), "a guest runs on it"
        self.faults.moment(can_fail=self.faults.error is not FULL)
        if partition.id not in self.active:
            raise ManagerError("it", "deactivate", Code.UNINITIALIZED)
        self.active.remove(partition.id)
        self.faults.moment(can_fail=self.faults.error is UNANSWERED)

    async def give_back(self, partition_ids: Sequence[int]) -> None:
        raise AssertionError

    def check(self) -> None:
        active = [set(SETS[each - FIRST]) for each in self.active]
        assert all(guest in active for guest in self.guests)
        assert self.owners is None or {each.partition for each in self.owners.activations} >= self.active


async def allocate(node: InMemory, partitions: Partitions, pod: str, *modules: int) -> None:
    await node.kubelet.allocate(partitions, pod, *modules)


async def prepare(node: InMemory, partitions: Partitions, claim: str, *modules: int) -> None:
    await node.kubelet.prepare(partitions, claim, *modules)
    node.claims[claim] = set(modules)


async def unprepare(node: InMemory, partitions: Partitions, claim: str) -> None:
    node.claims.pop(claim, None)
    await partitions.release(claim)


async def reconcile(node: InMemory, partitions: Partitions) -> None:
    node.time += 100
    await partitions.reconcile()


async def end(node: InMemory, partitions: Partitions, pod: str) -> None:
    node.kubelet.pods.pop(pod, None)


#: All that a plugin does, one after the other.
LIFE = (
    (reconcile,),
    (allocate, "default/one", 1, 3),
    (prepare, "claim", 5, 7),
    (prepare, "claim", 5, 7),
    (reconcile,),
    (end, "default/one"),
    (allocate, "default/two", 1, 2, 3, 4),
    (unprepare, "claim"),
    (end, "default/two"),
    (reconcile,),
    (reconcile,),
)


async def live(node: InMemory) -> None:
    """Go through it all; whoever is refused does without, and the manager forgets nothing when the plugin is killed."""
    partitions = node.partitions()
    for does, *arguments in LIFE:
        try:
            await does(node, partitions, *arguments)
        except Refusal:
            pass
        except Killed:
            node.faults = Faults()
            partitions = node.partitions()
        node.check()
    await unprepare(node, partitions, "claim")  # as the kubelet does with what it could not


@pytest.mark.parametrize("error", [None, FULL, ERROR, UNANSWERED], ids=["killed", "full", "error", "unanswered"])
def test_whatever_fails_at_whichever_moment_no_partition_is_lost_or_left(
    error: Exception | None, manager: Manager, tmp_path: Path
) -> None:
    fine = InMemory(Node(manager, tmp_path / "state"))
    run(live(fine))
    assert fine.faults.moments > 40
    for at in range(1, fine.faults.moments + 1):
        node = InMemory(Node(manager, tmp_path / "state"), error, at)

        async def life(node: InMemory = node) -> None:
            await live(node)
            partitions = node.partitions()
            for _ in range(2):
                await reconcile(node, partitions)

        run(life())
        assert (node.active, node.owners) == (set(), Owners()), f"{error} at {at}"


def test_a_pod_is_gone_when_it_was_missed_for_ten_seconds(manager: Manager, tmp_path: Path) -> None:
    node = InMemory(Node(manager, tmp_path / "state"))

    async def life() -> None:
        partitions = node.partitions()
        await allocate(node, partitions, "default/vm", 1, 3)
        await reconcile(node, partitions)
        held = node.kubelet.pods.pop("default/vm")
        await partitions.reconcile()
        assert partitions.next_reconcile == 10
        node.kubelet.pods["default/vm"] = held  # a list without it was one of a kubelet that starts
        await reconcile(node, partitions)
        del node.kubelet.pods["default/vm"]
        await partitions.reconcile()
        node.time += 9.9
        await partitions.reconcile()
        assert node.active == {node.kubelet.manager.id_of(1, 3)}
        node.time += 0.2
        await partitions.reconcile()
        assert node.active == set()

    run(life())


def test_what_the_manager_may_still_activate_is_nobody_elses_for_a_minute(manager: Manager, tmp_path: Path) -> None:
    node = InMemory(Node(manager, tmp_path / "state"), UNANSWERED)

    async def life() -> None:
        partitions = node.partitions()
        await partitions.reconcile()
        node.faults.at = node.faults.moments + 5  # after its look and its write
        with pytest.raises(Unanswered):
            await allocate(node, partitions, "default/vm", 1, 3)
        assert node.owners is not None
        assert [each.is_active for each in node.owners.activations] == [False]
        with pytest.raises(Refusal, match="which the Fabric Manager may still be activating; try again in a minute"):
            await allocate(node, partitions, "default/other", 1, 2, 3, 4)
        node.time += 60
        await allocate(node, partitions, "default/other", 1, 2, 3, 4)
        node.check()

    run(life())
