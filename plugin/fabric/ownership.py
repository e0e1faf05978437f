"""Activates partitions for the pods and claims that get their cards, and deactivates them when the owners are gone.

Even if this process, the manager or the kubelet fails, no partition is active for two owners, none is deactivated under
a running guest, and none stays active for long after its guest. docs/fabric.md has the rules.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pci.viability import Hindrance
from plugin.cards.config import Fabric
from plugin.cards.inventory import Device, Inventory
from plugin.changes.users import CannotAsk, KubeletList
from plugin.fabric.abi import Code
from plugin.fabric.absences import GONE_AFTER, Absences, holder
from plugin.fabric.activations import Activation, Owners, locked, owners_file
from plugin.fabric.board import Board, gpus, ids_of
from plugin.fabric.fabric_manager import Manager, ManagerError, NoLibrary, Unanswered
from plugin.fabric.modules import read_module_ids
from plugin.fabric.partitions import Partition, Table
from plugin.fabric.status import FabricStatus, serves_without
from plugin.state_files import Broken, StateFile
from program.errors import ProgramError, Refusal
from program.problem import Problem

T = TypeVar("T")

_log = logging.getLogger(__name__)

_LOCK_WITHIN = 120.0  # seconds for another plugin of this node to let go of the lock
_TRIES = 3
_TRIES_APART = 0.5  # seconds

#: Seconds from one reconcile to the next, however seldom the node is looked at: docs/fabric.md promises a minute.
RECONCILED_EVERY = 60.0
#: Seconds in which the manager may still carry out a request that it did not answer.
_STILL_COMING = 60.0
_GIVE_BACK_EVERY = 15.0  # seconds between looks, where the manager ends if it has no list within 60


class Partitions:
    """The partitions of this node; lives in one event loop.

    `settings` and `inventory` return the current values, `listed` asks the kubelet; `own_pod` is as in Absences.
    `every` is the seconds between two reconciles. `tell` gets the status of the partitions, and by device ID why
    NVLinks do not work. `manager` returns a manager to be asked under a lock, `file` has the owners, and `now` returns
    the time in seconds.
    """

    def __init__(
        self,
        state: Path,
        settings: Callable[[], Fabric | None],
        inventory: Callable[[], Inventory],
        listed: Callable[[], Awaitable[KubeletList]],
        own_pod: str | None,
        every: float,
        tell: Callable[[FabricStatus, Mapping[str, Hindrance]], None],
        manager: Callable[[Fabric, int], Manager] = Manager,
        file: StateFile[Owners] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sight = FabricStatus()
        self._unlinked: dict[str, Hindrance] = {}
        self._tell_all = tell
        self._state = state
        self._settings = settings
        self._inventory = inventory
        self._listed = listed
        self._every = every
        self._manager = manager
        self._file = file or owners_file(state)
        self._now = now
        self._mine = asyncio.Lock()
        self._absences = Absences(own_pod, every)
        self._unanswered: dict[int, float] = {}
        self._logged: frozenset[str] = frozenset()
        self._tasks: set[asyncio.Future[Any]] = set()

    @property
    def next_reconcile(self) -> float:
        """The seconds until the next reconcile."""
        settings = self._settings()
        is_soon = settings is not None and (settings.resume or self.sight.is_awaited)
        soon = _GIVE_BACK_EVERY if is_soon else self._every
        return min(self._every, soon, GONE_AFTER if self._absences.since else self._every)

    def preferred(self, available: Sequence[Device], must_include: Sequence[str], size: int) -> tuple[str, ...] | None:
        """Return the IDs of the devices that are the best free partition, as Board.preferred does; None without one."""
        if self._settings() is None or self.sight.board is None:
            return None
        others = (module for each in self.sight.others for module in each.modules)
        claimed = (module for each in self.sight.owners.activations if each.claim for module in each.modules)
        return self.sight.board.preferred(available, must_include, size, frozenset({*others, *claimed}))

    def claims(self) -> frozenset[str]:
        """Return the claims that own partitions; none if the file cannot be read: then claims keep their partitions."""
        try:
            owners = None if self._settings() is None else self._file.read()
        except Broken:
            return frozenset()
        return frozenset() if owners is None else frozenset(each.claim for each in owners.activations if each.claim)

    async def acquire(
        self, sets: Sequence[Sequence[Device]], claim: str | None = None
    ) -> tuple[Mapping[str, str], ...]:
        """Activate the partition of each set of devices, all or none, for `claim` or for a pod that is not known yet.
        Return the variables for the container of each set. Do nothing if the claim has the partitions already.

        Refusal if a set is no partition, if another owner has it, or if the manager does not activate it: a guest that
        starts without its NVLinks is worse than a guest that does not start.
        """
        settings = self._settings()
        if settings is None:
            return tuple({} for _ in sets)
        ids = read_module_ids(settings, self._state)
        if not any(gpus(device, ids) for devices in sets for device in devices):
            return tuple({} for _ in sets)
        # The caller may be cancelled; the manager's work has to be recorded all the same.
        return await self._to_its_end(self._acquire(settings, sets, claim))

    async def release(self, claim: str, device_ids: Iterable[str] | None = None) -> None:
        """Deactivate the partitions of a claim, if any; no guest uses them any more. `device_ids` are all devices of
        the claim, None if unknown. Refusal if the manager does not deactivate one, or may still be activating it."""
        settings = self._settings()
        if settings is None:
            return
        ids, by_id = read_module_ids(settings, self._state), self._inventory().by_id
        # A claim without GPUs of the board does not wait for a file that cannot be read.
        if device_ids is None or any(each not in by_id or gpus(by_id[each], ids) for each in device_ids):
            await self._to_its_end(self._release(settings, claim))

    async def reconcile(self) -> None:
        """Activate the partitions again that the manager has lost, and deactivate those of pods that are gone. Log each
        failure once."""
        settings = self._settings()
        if settings is None:
            return
        try:
            await self._reconcile(settings)
        except Broken as error:
            self.sight = FabricStatus.without_owners(error)
            self._tell_all(self.sight, dict(self._unlinked))
            self._tell({str(error)})
        except ProgramError as error:
            awaited = self.sight.board is None
            self.sight = replace(self.sight, trouble=error.problem, is_awaited=awaited, lacks_owners=False)
            self._tell_all(self.sight, dict(self._unlinked))
            self._tell({str(error)})

    async def _to_its_end(self, work: Awaitable[T]) -> T:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.debug("%s", error)  # the caller has it, unless that was cancelled

    @asynccontextmanager
    async def _alone(self, settings: Fabric) -> AsyncIterator[Manager]:
        """Keep out other changes, by this plugin or another one, and yield the manager."""
        async with self._mine, locked(self._state, _LOCK_WITHIN) as lock:
            try:
                yield self._manager(settings, lock)
            finally:
                self._tell_all(self.sight, dict(self._unlinked))

    async def _acquire(
        self, settings: Fabric, sets: Sequence[Sequence[Device]], claim: str | None
    ) -> tuple[Mapping[str, str], ...]:
        async with self._alone(settings) as manager:
            board = await self._look(settings, manager)
            if board is None:
                return tuple({} for _ in sets)
            variables: list[Mapping[str, str]] = []
            done: list[int] = []
            try:
                for devices in sets:
                    partition = board.partition(devices)
                    variables.append(board.variables(partition))
                    if partition is not None and await self._give(manager, partition, devices, claim):
                        done.append(partition.id)
            except Refusal:
                for partition_id in done:
                    with suppress(Refusal):  # a reconcile does it
                        await self._take_back(manager, partition_id)
                raise
            return tuple(variables)

    async def _give(self, manager: Manager, partition: Partition, devices: Sequence[Device], claim: str | None) -> bool:
        """Activate a partition; return False if the claim had it before. Call this with the lock held, right after a
        look."""
        subject = f"partition {partition.id}"
        ids = tuple(sorted(device.id for device in devices))
        mine = self.sight.owners.of(partition.id)
        if mine is not None and claim is not None and (mine.claim, mine.devices) == (claim, ids):
            if mine.is_active and self._is_active(partition.id):
                return False
        else:
            for other in self.sight.owners.overlapping(partition.modules):
                await self._require_gone(other, claim)
                await self._take_back(manager, other.partition)
        for stranger in self.sight.others:
            if stranger.overlaps(partition):
                wrong = f"overlaps partition {stranger.id}, which is active, and gpu-plugin does not know for whom"
                raise Refusal(subject, wrong, "end its guest and deactivate it (fmpm), or have other cards allocated")
        new = Activation(partition.id, partition.modules, ids, claim=claim)
        self._write(self.sight.owners.with_activation(new))
        try:
            await manager.activate(partition)
        except Unanswered:
            self._unanswered[partition.id] = self._now()
            raise
        except ManagerError as error:
            if error.code == Code.IN_USE:
                self._write(self.sight.owners.without(partition.id))
            elif error.code == Code.NVLINK_ERROR:
                self._mark_unlinked(error, ids)
                try:
                    await self._deactivate(manager, partition)
                except Refusal:
                    pass  # it stays recorded, and a reconcile deactivates it
                else:
                    self._write(self.sight.owners.without(partition.id))
            raise
        self._write(self.sight.owners.with_activation(replace(new, is_active=True)))
        self._set_active(partition.id, is_active=True)
        return True

    async def _deactivate(self, manager: Manager, partition: Partition) -> None:
        try:
            await manager.deactivate(partition)
        except ManagerError as error:
            if error.code != Code.UNINITIALIZED:  # it is not active
                raise

    async def _require_gone(self, other: Activation, claim: str | None) -> None:
        """Raise Refusal unless the owner of a partition is known to be gone.

        The kubelet allocates a device again only when its former pod has ended, and the kubelet's list has to lack that
        pod too. A claim's end is known only by its release, and for a claim it is not known which pods have ended.
        """
        by_list = other.claim is None and claim is None
        if not (by_list and self._absences.is_missing(other, await self._listed())):
            wrong = f"would overlap partition {other.partition} of {other.owner}, which is not known to be gone"
            raise Refusal("the partition", wrong, "try again when it has ended")
        if self._may_still_be_activating(other.partition, _STILL_COMING):
            wrong = f"would overlap partition {other.partition}, which the Fabric Manager may still be activating"
            raise Refusal("the partition", wrong, "try again in a minute")

    def _require_answered(self, partition_id: int) -> None:
        """Raise Refusal if the manager may still be activating a partition: without an entry it would have no owner."""
        if not self._is_active(partition_id) and self._may_still_be_activating(partition_id, self._every):
            wrong = "may still be activated: the Fabric Manager was asked to, and did not answer"
            raise Refusal(f"partition {partition_id}", wrong, "it is tried again")

    def _may_still_be_activating(self, partition_id: int, at_most: float) -> bool:
        since = self._unanswered.get(partition_id)
        return since is not None and self._now() - since < min(at_most, _STILL_COMING)

    async def _take_back(self, manager: Manager, partition_id: int) -> None:
        """Deactivate a partition of ours and remove its owner; Refusal if the manager does not deactivate it."""
        written = self.sight.owners.of(partition_id)
        partition = None if self.sight.board is None else self.sight.board.table.by_id(partition_id)
        if written is None:
            return
        # In another table the number means other GPUs, and no partition of ours is active.
        if partition is not None and partition.modules == written.modules and partition.is_active:
            await self._deactivate(manager, partition)
            self._set_active(partition_id, is_active=False)
            _log.info("deactivated partition %d of %s", partition_id, written.owner)
        self._write(self.sight.owners.without(partition_id))
        self._absences.since.pop(written, None)

    async def _release(self, settings: Fabric, claim: str) -> None:
        async with self._alone(settings) as manager:
            owners = self._file.read()
            if owners is None or not any(each.claim == claim for each in owners.activations):
                return
            await self._look(settings, manager)
            for each in self.sight.owners.activations:
                if each.claim == claim:
                    self._require_answered(each.partition)
                    await self._take_back(manager, each.partition)

    async def _reconcile(self, settings: Fabric) -> None:
        async with self._alone(settings) as manager:
            if await self._look(settings, manager) is None:
                return
            troubles = {
                f"partition {each.id} is active, and gpu-plugin does not know for whom: it is left alone"
                for each in self.sight.others
            }
            if self.sight.trouble is not None:
                troubles.add(str(self.sight.trouble))
            if any(each.claim is None for each in self.sight.owners.activations):
                try:
                    await self._sweep(manager, await self._listed())
                except (CannotAsk, ManagerError, Unanswered) as error:
                    troubles.add(str(error))
            self._tell(troubles)

    async def _sweep(self, manager: Manager, listed: KubeletList) -> None:
        """Record which pods have which partitions, and deactivate the partitions of pods that are gone."""
        pods = [each for each in self.sight.owners.activations if each.claim is None]
        for each in pods:
            if each.pod is None and (pod := holder(each, listed)) is not None:
                self._write(self.sight.owners.with_activation(replace(each, pod=pod)))
        for each in self._absences.gone(pods, listed, self._now()):
            if not self._may_still_be_activating(each.partition, self._every):
                await self._take_back(manager, each.partition)

    async def _look(self, settings: Fabric, manager: Manager) -> Board | None:
        """Read the table, and activate again the partitions that the manager has lost. Return None if this node has no
        partitions; Refusal if it had some before, and the manager does not answer."""
        owners = self._file.read()
        try:
            table = await self._table(settings, manager, owners or Owners())
        except (NoLibrary, ManagerError) as error:
            if not serves_without(error, owners):
                raise
            self.sight = FabricStatus(trouble=error.problem)
            self._tell({f"cards are served without partitions: {error}"})
            return None
        ids = ids_of(self._inventory(), read_module_ids(settings, self._state))
        self.sight = FabricStatus(Board(table, ids, settings.version), owners or Owners())
        if owners is None:
            self._write(Owners())
        for each in self.sight.owners.activations:
            if each.is_active:
                await self._bring_back(manager, each)
            elif self._is_active(each.partition):
                self._write(self.sight.owners.with_activation(replace(each, is_active=True)))
        others = tuple(each.id for each in self.sight.others)
        if self.sight.owners.others != others:
            self._write(replace(self.sight.owners, others=others))
        return self.sight.board

    async def _table(self, settings: Fabric, manager: Manager, owners: Owners) -> Table:
        """Ask for the table, repeatedly if the manager has just been started; tell it the active ones if it waits for
        that."""
        active = sorted({*(each.partition for each in owners.activations if each.is_active), *owners.others})
        for _ in range(_TRIES - 1):
            try:
                return await manager.table()
            except ManagerError as error:
                if error.code not in (Code.NOT_CONFIGURED, Code.CONNECTION_NOT_VALID):
                    raise
                if error.code == Code.NOT_CONFIGURED and settings.resume:
                    with suppress(ManagerError):  # it is not there yet
                        await manager.give_back(active)
                        _log.info("gave its %d active partitions back to the Fabric Manager", len(active))
                        continue
            await asyncio.sleep(_TRIES_APART)
        return await manager.table()

    async def _bring_back(self, manager: Manager, lost: Activation) -> None:
        """Activate a partition of ours again if the manager has been restarted since."""
        board = self.sight.board
        partition = None if board is None else board.table.by_id(lost.partition)
        if partition is None or partition.modules != lost.modules:
            wrong = f"of {lost.owner}, is not in the Fabric Manager's table any more"
            problem = Problem(f"partition {lost.partition}", wrong, "end its guest, and have its cards allocated anew")
            self.sight = replace(self.sight, trouble=problem)
        elif not partition.is_active:
            try:
                await manager.activate(partition)
            except (ManagerError, Unanswered) as error:
                if isinstance(error, ManagerError) and error.code == Code.NVLINK_ERROR:
                    self._mark_unlinked(error, lost.devices)
                wrong = f"of {lost.owner}, has lost its NVLinks: {error.problem.wrong}"
                self.sight = replace(self.sight, trouble=Problem(error.problem.subject, wrong, error.problem.fix))
                return
            self._set_active(lost.partition, is_active=True)
            _log.warning("activated partition %d of %s again: the Fabric Manager had lost it", partition.id, lost.owner)

    def _mark_unlinked(self, error: ManagerError, device_ids: Sequence[str]) -> None:
        reason = Hindrance("has no NVLink: the Fabric Manager could not train its links", error.problem.fix)
        self._unlinked |= dict.fromkeys(device_ids, reason)

    def _is_active(self, partition_id: int) -> bool:
        board = self.sight.board
        return board is not None and any(each.id == partition_id for each in board.table.active)

    def _set_active(self, partition_id: int, *, is_active: bool) -> None:
        board = self.sight.board
        if board is not None:
            table = board.table.with_state(partition_id, is_active=is_active)
            self.sight = replace(self.sight, board=replace(board, table=table))

    def _write(self, owners: Owners) -> None:
        self._file.write(owners)
        self.sight = replace(self.sight, owners=owners)

    def _tell(self, troubles: set[str]) -> None:
        """Log the troubles that were not there at the last look."""
        for trouble in sorted(troubles - self._logged):
            _log.warning("%s", trouble)
        self._logged = frozenset(troubles)


@asynccontextmanager
async def reconciling(partitions: Partitions) -> AsyncIterator[None]:
    """Reconcile now, and from time to time until the block ends."""
    await partitions.reconcile()

    async def reconcile() -> None:
        while True:
            await asyncio.sleep(partitions.next_reconcile)
            try:
                await partitions.reconcile()
            except Exception:
                # A defect of ours must not end what is served.
                _log.exception("the partitions stay as they were")

    task = asyncio.create_task(reconcile())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
