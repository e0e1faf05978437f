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
from tests.plugin.fabric.node import Node, run

FIRST, SETS = H100


class Killed(BaseException):
    """The plugin's process has ended here."""


class World:
    """The node with a manager, a disk and a clock in memory. At the step of the number `at` something fails: before or
    after it is done; each thing that the manager is asked and each write is one."""

    def __init__(self, node: Node, fault: str = "none", at: int = 0) -> None:
        self.node, self.fault, self.at = node, fault, at
        self.steps = 0
        self.time = 1000.0
        self.active: set[int] = set()
        self.owners: Owners | None = None
        self.claims: dict[str, set[int]] = {}

    @property
    def guests(self) -> list[set[int]]:
        return [*self.node.pods.values(), *self.claims.values()]

    def partitions(self) -> Partitions:
        return self.node.partitions(60, manager=lambda *_: self, file=self, now=lambda: self.time)

    def fail(self, when: str, *, is_write: bool = False) -> None:
        self.steps += when == "before"
        what, _, moment = self.fault.partition(" ")
        if what == "killed" and self.steps >= self.at and (moment == when or self.steps > self.at):
            raise Killed
        if self.steps != self.at or moment != when:
            return
        if what == "full" and is_write:
            raise Refusal("partitions.json", "cannot be written: No space left on device", "")
        if what == "unanswered" and not is_write:
            raise Unanswered("the Fabric Manager", "does not answer within 45 s", "")
        if what == "error" and not is_write:
            raise ManagerError("the Fabric Manager", "table", Code.GENERIC_ERROR)

    # The disk.

    def read(self) -> Owners | None:
        return self.owners

    def write(self, value: Owners) -> None:
        self.fail("before", is_write=True)
        self.owners = value
        self.fail("after", is_write=True)

    # The manager.

    async def table(self) -> Table:
        self.fail("before")
        numbered = enumerate(SETS, start=FIRST)
        return Table(tuple(Partition(number, modules, number in self.active) for number, modules in numbered))

    async def activate(self, partition: Partition) -> None:
        assert self.owners is not None
        assert self.owners.of(partition.id) is not None, "it is written down before"
        self.fail("before")
        if any(set(SETS[each - FIRST]) & set(partition.modules) for each in self.active):
            raise ManagerError("it", "activate", Code.IN_USE)
        self.active.add(partition.id)
        self.fail("after")

    async def deactivate(self, partition: Partition) -> None:
        assert not any(guest & set(partition.modules) for guest in self.guests), "a guest runs on it"
        self.fail("before")
        if partition.id not in self.active:
            raise ManagerError("it", "deactivate", Code.UNINITIALIZED)
        self.active.remove(partition.id)
        self.fail("after")

    async def give_back(self, partition_ids: Sequence[int]) -> None:
        raise AssertionError

    def check(self) -> None:
        active = [set(SETS[each - FIRST]) for each in self.active]
        assert all(guest in active for guest in self.guests)
        assert self.owners is None or {each.partition for each in self.owners.activations} >= self.active


async def allocate(world: World, partitions: Partitions, pod: str, *modules: int) -> None:
    await world.node.allocate(partitions, pod, *modules)


async def prepare(world: World, partitions: Partitions, claim: str, *modules: int) -> None:
    await world.node.prepare(partitions, claim, *modules)
    world.claims[claim] = set(modules)


async def unprepare(world: World, partitions: Partitions, claim: str) -> None:
    world.claims.pop(claim, None)
    await partitions.release(claim)


async def reconcile(world: World, partitions: Partitions) -> None:
    world.time += 100
    await partitions.reconcile()


async def end(world: World, partitions: Partitions, pod: str) -> None:
    world.node.pods.pop(pod, None)


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


async def live(world: World) -> None:
    """Go through it all; whoever is refused does without, and the manager forgets nothing when the plugin is killed."""
    partitions = world.partitions()
    for does, *arguments in LIFE:
        try:
            await does(world, partitions, *arguments)
        except Refusal:
            pass
        except Killed:
            world.fault = "none"
            partitions = world.partitions()
        world.check()
    await unprepare(world, partitions, "claim")  # as the kubelet does with what it could not


FAULTS = ("killed before", "killed after", "full before", "error before", "unanswered before", "unanswered after")


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_fails_at_whichever_step_no_partition_is_lost_or_left(
    fault: str, manager: Manager, tmp_path: Path
) -> None:
    fine = World(Node(manager, tmp_path / "state"))
    run(live(fine))
    assert fine.steps > 20
    for at in range(1, fine.steps + 1):
        world = World(Node(manager, tmp_path / "state"), fault, at)

        async def life(world: World = world) -> None:
            await live(world)
            partitions = world.partitions()
            for _ in range(2):
                await reconcile(world, partitions)
            assert (world.active, world.owners) == (set(), Owners()), f"{world.fault} at {world.at}"

        run(life())


def test_a_pod_is_gone_when_it_was_missed_for_ten_seconds(manager: Manager, tmp_path: Path) -> None:
    world = World(Node(manager, tmp_path / "state"))

    async def life() -> None:
        partitions = world.partitions()
        await allocate(world, partitions, "default/vm", 1, 3)
        await reconcile(world, partitions)
        held = world.node.pods.pop("default/vm")
        await partitions.reconcile()
        assert partitions.next_reconcile == 10
        world.node.pods["default/vm"] = held  # a list without it was one of a kubelet that starts
        await reconcile(world, partitions)
        del world.node.pods["default/vm"]
        await partitions.reconcile()
        world.time += 9.9
        await partitions.reconcile()
        assert world.active == {world.node.manager.id_of(1, 3)}
        world.time += 0.2
        await partitions.reconcile()
        assert world.active == set()

    run(life())


def test_what_the_manager_may_still_activate_is_nobody_elses_for_a_minute(manager: Manager, tmp_path: Path) -> None:
    world = World(Node(manager, tmp_path / "state"), "unanswered after")

    async def life() -> None:
        partitions = world.partitions()
        await partitions.reconcile()
        world.at = world.steps + 3  # its look, its write
        with pytest.raises(Unanswered):
            await allocate(world, partitions, "default/vm", 1, 3)
        assert world.owners is not None
        assert [each.is_active for each in world.owners.activations] == [False]
        with pytest.raises(Refusal, match="which the Fabric Manager may still be activating; try again in a minute"):
            await allocate(world, partitions, "default/other", 1, 2, 3, 4)
        world.time += 60
        await allocate(world, partitions, "default/other", 1, 2, 3, 4)
        world.check()

    run(life())
