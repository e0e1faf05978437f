"""Prepare and Unprepare: give a claim's devices to its pod and take them back, one claim of the node at a time.

Each step is recorded before it begins, so that the next attempt, also after a crash, can finish or undo it.
"""

import asyncio
import contextlib
import logging
import math
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pci.viability import Hindrance
from plugin.allocation import Allocation, allocate, pick
from plugin.dra.apiserver import APIServer, NotFound, Unanswered
from plugin.dra.binder import Binder
from plugin.dra.cdi import Files
from plugin.dra.checkpoint import Checkpoint, Prepared, PreparedDevice, claimed
from plugin.dra.chosen import chosen
from plugin.dra.claims import DriverClaim, Reference, check, has_conditions, read_claim
from plugin.dra.devices import ClaimDevices
from plugin.dra.slices import attributes, device_name
from plugin.dra.tasks import ClaimTasks, StillAtWork
from plugin.fabric.ownership import Partitions
from plugin.kinds.card import NotRebound
from plugin.kinds.vgpus import NotMade
from plugin.node.snapshot import Snapshot
from plugin.state_files import Broken
from plugin.watch.watch import Watch
from program.errors import ProgramError, together

_log = logging.getLogger(__name__)

#: A deleted claim is taken back after so many seconds: after a deletion by force its pod may still be ending.
_STAYS_PREPARED = 500.0
#: Seconds for the other plugin of the node, in a rolling update, to be done with a claim.
_OTHERS_END_WITHIN = 20.0
#: Seconds for which what could not be bound or made for a claim is not offered: the claim's pod may go elsewhere.
_STAYS_REFUSED = 300.0
#: Seconds after a failure in which the kubelet asks for a claim again, if its pod is still there.
_ASKED_AGAIN_WITHIN = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """The name of the node, the directory of the checkpoint, the runtime's directory for CDI, the kubelet's
    plugins_registry, a kubeconfig or None for the pod's own account, and the ID of this boot."""

    node: str
    state: Path
    cdi: Path
    registry: Path
    kubeconfig: Path | None
    boot: str


class Claims:
    """The node's claims. Lives in the watch's event loop.

    `is_begun` is set when a claim has been begun and is not prepared yet: a reconcile takes it back, unless it is
    requested again within `asked_again` seconds.
    """

    def __init__(
        self,
        watch: Watch,
        api: APIServer,
        partitions: Partitions,
        settings: DriverSettings,
        *,
        binder: Binder | None = None,
        asked_again: float = _ASKED_AGAIN_WITHIN,
    ) -> None:
        self._watch = watch
        self._api = api
        self._node = settings.node
        self._checkpoint = Checkpoint(settings.state, settings.boot)
        self._files = Files(settings.cdi, settings.state)
        binder = binder or Binder(watch.sources.sys, watch.sources.state, watch.counters.binds)
        self._devices = ClaimDevices(watch, binder)
        self._partitions = partitions
        self._not_given_back: dict[str, Hindrance] = {}  # by device: why it is not back on its driver
        self._refused: dict[str, tuple[float, Hindrance]] = {}  # by device: until when, why it could not be had
        self._lock = asyncio.Lock()
        self._tasks = ClaimTasks()
        self._asked_again = asked_again
        self._asked: dict[str, float] = {}  # when a begun claim was last requested, by the loop's clock
        self.is_begun = asyncio.Event()
        self._gone: Mapping[str, float] = {}  # since when claims are gone, by the loop's clock

    def recall(self) -> None:
        """Read the prepared devices from the checkpoint, if that is possible."""
        with contextlib.suppress(Broken):
            self._tell(self._read())

    def _read(self) -> Mapping[str, Prepared]:
        """Read the checkpoint; Broken if that is not possible: all devices of claims are unhealthy until it is."""
        try:
            claims = self._checkpoint.read()
        except Broken as error:
            self._watch.see(replace(self._watch.snapshot, claims_trouble=error.problem))
            self.is_begun.set()  # a reconcile looks again and again
            raise
        if self._watch.snapshot.claims_trouble is not None:
            self._tell(claims)
        return claims

    async def prepare(self, reference: Reference) -> tuple[PreparedDevice, ...]:
        """Give the claim's devices of this node to its pod, and return them; a second call returns the same.
        ProgramError, naming claim or card, if the pod cannot have them; StillAtWork if that takes long."""
        check(reference)
        work = partial(self._prepare_allocated, reference)
        return await self._tasks.run("prepared", reference.uid, f"claim {reference}", work)

    async def _prepare_allocated(self, reference: Reference) -> tuple[PreparedDevice, ...]:
        try:
            # Before the node's lock is taken: the API server may take its time.
            claim = read_claim(reference, await self._api.claim(reference), self._node)
        except Unanswered as unanswered:
            return await self._given_before(reference.uid, unanswered)
        async with self._alone():
            try:
                return await self._prepare(claim, dict(self._read()), is_here=True)
            finally:
                self._tell_begun(reference.uid)

    async def make_ready(self, claim: DriverClaim) -> tuple[PreparedDevice, ...]:
        """Bind the claim's cards and activate its partition before its pod is on this node; `prepare` does the rest.
        ProgramError if that is not possible: a card that cannot be bound is unhealthy for some minutes, since the
        scheduler would choose it again."""
        check(claim.reference)
        async with self._alone():
            try:
                return await self._prepare(claim, dict(self._read()), is_here=False)
            except NotRebound as error:
                self._mark_unbound(claim, error)
                raise
            except NotMade as error:
                self._mark_unmade(error)
                raise
            finally:
                self._tell_begun(claim.reference.uid)

    async def give_up(self, uid: str) -> None:
        """Take back a claim that was made ready, and whose pod did not come."""
        async with self._alone():
            known = self._read().get(uid)
            if known is not None and not known.completed:
                await self._take_back_if_it_can(uid)

    def _mark_unbound(self, claim: DriverClaim, error: NotRebound) -> None:
        """Mark the devices of the claim that could not be bound."""
        names = {result.device for result in claim.results}
        until = asyncio.get_running_loop().time() + _STAYS_REFUSED
        for device in self._watch.snapshot.inventory.published:
            reasons = [error.reasons[each.address] for each in device.functions if each.address in error.reasons]
            if device_name(device) in names and reasons:
                subject, wrong, fix = reasons[0]
                self._refused[device.id] = until, Hindrance(f"could not be bound to vfio: {subject}: {wrong}", fix)
                self.is_begun.set()

    def _mark_unmade(self, error: NotMade) -> None:
        """Mark the vGPUs that the card cannot make."""
        subject, wrong, fix = error.problem
        until = asyncio.get_running_loop().time() + _STAYS_REFUSED
        hindrance = Hindrance(f"could not be made: {subject}: {wrong}", fix)
        self._refused |= dict.fromkeys(error.names, (until, hindrance))
        self.is_begun.set()

    async def _given_before(self, uid: str, unanswered: Unanswered) -> tuple[PreparedDevice, ...]:
        """Return the devices that the claim's pod has already, without the API server; raise `unanswered` if none."""
        async with self._alone():
            known = self._read().get(uid)
            if known is None or not self._is_given(uid, known):
                raise unanswered
            return known.devices

    def _is_given(self, uid: str, known: Prepared) -> bool:
        """Whether the claim's pod may run, and its containers may start again."""
        return known.completed and self._files.are_whole(uid, {device.request for device in known.devices})

    def _tell_begun(self, uid: str) -> None:
        claims = self._read()
        self._tell(claims)
        if uid in claims and not claims[uid].completed:
            self._asked[uid] = asyncio.get_running_loop().time()
            self.is_begun.set()

    async def _prepare(
        self, claim: DriverClaim, claims: dict[str, Prepared], *, is_here: bool
    ) -> tuple[PreparedDevice, ...]:
        """Prepare the claim's devices and return them. `is_here`: the claim's pod is on this node."""
        uid = claim.reference.uid
        known = claims.pop(uid, None)
        wanted = {(result.request, result.device) for result in claim.results}
        is_same = known is not None and {(device.request, device.name) for device in known.devices} == wanted
        is_given = is_same and known is not None and known.completed  # its pod may run
        if known is not None:
            self._want_again(known)
            if is_same and self._is_given(uid, known):
                # Its pod may be using the devices: a card's present trouble does not matter here.
                return known.devices
            if not is_same:
                self._files.remove(uid)
                # The claim was allocated anew, and this node did not hear of its end.
                await self._partitions.release(uid)
                await self._give_back(uid)
                self._checkpoint.write(claims)
                known = None
        if not claim.results:
            return ()
        # An attempt that was not completed goes on: a driver may take longer than the kubelet waits.
        before = () if known is None else known.devices
        try:
            devices = await self._take(claim, claims, before, is_given=is_given, is_here=is_here)
        except StillAtWork:
            raise
        except Exception:  # even after a defect of ours no card stays bound
            if not is_given:
                await self._take_back_if_it_can(uid)
            raise
        _log.info(
            "%s %s for claim %s",
            "prepared" if is_here else "bound",
            ", ".join(device.id for device in devices),
            claim.reference,
            extra={"claim": str(claim.reference), "devices": [device.id for device in devices]},
        )
        return devices

    async def _take(
        self,
        claim: DriverClaim,
        others: Mapping[str, Prepared],
        before: tuple[PreparedDevice, ...],
        *,
        is_given: bool,
        is_here: bool,
    ) -> tuple[PreparedDevice, ...]:
        """Check and record the claim's devices, bind them or make its vGPUs, and write their files if its pod
        `is_here`. `before` are the devices that an earlier attempt recorded; `is_given`: a pod may have them.
        ProgramError if a step fails."""
        uid = claim.reference.uid
        await self._watch.look_again(uses=True)
        snapshot = self._watch.snapshot
        devices = chosen(claim, snapshot, before, others)
        pick(snapshot, [device.id for device in devices if not device.is_made])
        prepared = Prepared(claim.reference.namespace, claim.reference.name, is_given, devices)
        self._checkpoint.write({**others, uid: prepared})
        self._tell({**others, uid: prepared})
        devices = await self._devices.bind(devices, before, others)
        await self._devices.make(devices, others)
        snapshot = self._watch.snapshot
        cards = pick(snapshot, [device.id for device in devices])
        (variables,) = await self._partitions.acquire([cards], uid)
        if is_here:
            self._write_files(devices, claim, self._watch.snapshot, variables)
        self._checkpoint.write({**others, uid: replace(prepared, devices=devices, completed=is_given or is_here)})
        return devices

    def _want_again(self, known: Prepared) -> None:
        """Let the claim have its devices again, also those that could not be given back to their drivers."""
        ids = {device.id for device in known.devices} & self._not_given_back.keys()
        for device in ids:
            del self._not_given_back[device]
        if ids:
            self.recall()

    async def _give_back(self, uid: str) -> None:
        """Give the devices that were bound for a claim back to their drivers, remove its vGPUs, and record both.
        ProgramError, at the end, for devices with which that fails: they are unhealthy until it succeeds."""
        claims = dict(self._read())
        others = {each: prepared for each, prepared in claims.items() if each != uid}
        errors: list[ProgramError] = []
        for device in claims[uid].devices:
            if not device.bound and not device.is_made:
                continue
            try:
                await self._devices.give_back(device, others)
            except ProgramError as error:
                errors.append(error)
                subject, wrong, fix = error.problem
                was = "was not taken away" if device.is_made else "was not given back to its driver"
                self._not_given_back[device.id] = Hindrance(f"{was}: {subject}: {wrong}", fix)
                continue
            self._not_given_back.pop(device.id, None)
            devices = tuple(replace(each, bound=()) if each is device else each for each in claims[uid].devices)
            claims[uid] = replace(claims[uid], devices=devices)
            self._checkpoint.write(claims)
        if errors:
            self._tell(claims)
            raise together(errors)

    def _write_files(
        self, devices: Sequence[PreparedDevice], claim: DriverClaim, snapshot: Snapshot, env: Mapping[str, str]
    ) -> None:
        by_request: dict[str, list[PreparedDevice]] = defaultdict(list)
        for each in devices:
            by_request[each.request].append(each)
        allocations: dict[str, Allocation] = {}
        described = {}
        for request, prepared in by_request.items():
            its = [snapshot.inventory.by_id[each.id] for each in prepared]
            nodes = [snapshot.nodes_of(device) for device in its]
            allocations[request] = allocate(snapshot, str(its[0].resource), its, nodes)
            described[request] = [
                (each.name, attributes(device, self._node, snapshot.place(device), snapshot.identity(device)))
                for each, device in zip(prepared, its, strict=True)
            ]
        self._files.write(claim, allocations, described, env, self._node)

    async def unprepare(self, reference: Reference) -> None:
        """Take back all devices, files and partitions of the claim, if any; ProgramError if that fails."""
        check(reference)
        await self._tasks.stop("prepared", reference.uid)
        work = partial(self._take_back_alone, reference.uid)
        await self._tasks.run("unprepared", reference.uid, f"claim {reference}", work)

    async def _take_back_alone(self, uid: str) -> None:
        async with self._alone():
            await self._take_back(uid)

    async def _take_back(self, uid: str) -> None:
        known = self._read().get(uid)
        # Files and partitions may exist without an entry, if the plugin ended or the node restarted in between.
        self._files.remove(uid)
        await self._partitions.release(uid, None if known is None else [device.id for device in known.devices])
        if known is None:
            return
        await self._give_back(uid)
        claims = {each: its for each, its in self._read().items() if each != uid}
        self._checkpoint.write(claims)
        self._tell(claims)
        if known.completed:
            _log.info("unprepared claim %s", known, extra={"claim": str(known)})

    async def _take_back_if_it_can(self, uid: str) -> bool:
        """Take back a claim, or log why not and return False: it stays in the checkpoint for the next attempt."""
        try:
            await self._take_back(uid)
        except ProgramError as error:
            _log.warning("claim %s is not taken back yet: %s", uid, error)
            return False
        return True

    async def reconcile(self) -> bool:
        """Take back begun claims that are no longer requested, files and partitions of claims that are not prepared,
        and claims that the API server has lacked for some minutes. Return whether nothing is left to take back.
        ProgramError if the checkpoint cannot be read, or the API server does not answer."""
        now = asyncio.get_running_loop().time()
        async with self._alone():
            self._checkpoint.renew_if_lost(is_used=self._files.has_specifications())
        half = {uid: prepared for uid, prepared in self._read().items() if not prepared.completed}
        awaited = {uid for uid, prepared in half.items() if await self._is_awaited(uid, prepared)}
        async with self._alone():
            claims = self._read()
            nobodys = (self._files.claims() | self._partitions.claims()) - claims.keys()
            for uid in sorted(nobodys):
                _log.warning("what claim %s has is taken back: it is not prepared", uid)
            begun = {uid for uid, prepared in claims.items() if not prepared.completed}
            left = {uid for uid in begun if now - self._asked.get(uid, -math.inf) > self._asked_again} - awaited
            done = [await self._take_back_if_it_can(uid) for uid in sorted(nobodys | left)]
            done.append(await self._remove_nobodys_vgpus())
            self._asked = {uid: self._asked.get(uid, now) for uid in begun - left}
            claims = dict(self._read())
            self._tell(claims)
        self._gone = {
            uid: self._gone.get(uid, now)
            for uid, prepared in claims.items()
            if await self._is_gone(Reference(prepared.namespace, prepared.name, uid))
        }
        async with self._alone():
            for uid in sorted(uid for uid, since in self._gone.items() if now - since > _STAYS_PREPARED):
                _log.warning("claim %s exists no more, and was never unprepared", claims[uid])
                done.append(await self._take_back_if_it_can(uid))
        return all(done) and not self._asked and not self._refused

    async def _remove_nobodys_vgpus(self) -> bool:
        """Remove vGPUs that were made for a claim and that no claim has, since the checkpoint was removed. Return
        whether none is left."""
        snapshot = self._watch.snapshot
        claims = self._read()
        has = claimed(claims)
        left = [
            device.id
            for device in snapshot.inventory.devices
            if device.is_of_claim and device.id not in has and device.id not in snapshot.holders
        ]
        if not left:
            return True
        _log.warning("vGPUs that no claim has are taken away: %s", ", ".join(left), extra={"devices": left})
        try:
            await self._devices.remove(left, claims)
        except ProgramError as error:
            _log.warning("%s", error)
            return False
        return True

    async def _is_awaited(self, uid: str, prepared: Prepared) -> bool:
        """Whether the scheduler may still send the pod of a claim that was made ready; True if that is not known."""
        try:
            claim = await self._api.claim(Reference(prepared.namespace, prepared.name, uid))
        except NotFound:
            return False
        except Unanswered:
            return True
        return claim["metadata"]["uid"] == uid and has_conditions(claim, self._node)

    async def _is_gone(self, reference: Reference) -> bool:
        try:
            return bool((await self._api.claim(reference))["metadata"]["uid"] != reference.uid)
        except NotFound:
            return True

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        async with self._lock, self._checkpoint.alone(_OTHERS_END_WITHIN):
            yield

    def _tell(self, claims: Mapping[str, Prepared]) -> None:
        now = claimed(claims)
        # Another plugin of the node may have given a device back.
        self._not_given_back = {device: why for device, why in self._not_given_back.items() if device in now}
        clock = asyncio.get_running_loop().time()
        self._refused = {device: (until, why) for device, (until, why) in self._refused.items() if clock < until}
        kept = {**{device: why for device, (_, why) in self._refused.items()}, **self._not_given_back}
        names = {each.id: each.name for prepared in claims.values() for each in prepared.devices if each.is_made}
        self._watch.see(
            replace(self._watch.snapshot, claimed=now, claims_trouble=None, kept=kept, claimable_names=names)
        )
