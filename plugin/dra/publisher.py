"""Keeps the node's slices at the API server up to date: writes them only if they differ from the node.

The server's slices are compared with the wanted ones, also after a failed attempt or another client's edit. Slices are
never deleted because a read failed, nor when the plugin ends: another plugin may have started.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any

from plugin.dra.apiserver import APIServer, Conflict, Invalid, NotFound
from plugin.dra.slices import OwningNode, SliceObject, slices
from plugin.watch.watch import Watch
from program.errors import ProgramError
from program.trouble import Trouble

_log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 4.0  # seconds between two attempts
_LOOK_AT_SIBLINGS = 2.0  # seconds
_CONDITIONS = ("bindingConditions", "bindingFailureConditions")
_MOST = 1 << 62  # a generation is an int64


class Publisher:
    """Publishes the watch's snapshots of a node. `is_ours` says whether this plugin writes the slices: in a rolling
    update the younger of two does. `keeps_conditions` says whether binding conditions would be set."""

    def __init__(
        self,
        watch: Watch,
        api: APIServer,
        node: str,
        is_ours: Callable[[], bool],
        keeps_conditions: Callable[[], bool],
    ) -> None:
        self._watch = watch
        self._api = api
        self._node = node
        self._is_ours = is_ours
        self._uid: str | None = None
        # By name: the slice as sent, and the version of the server's slice, which may lack fields.
        self._sent: dict[str, tuple[SliceObject, str]] = {}
        self._takes_taints = self._takes_conditions = self._takes_counters = True
        self._keeps_conditions = keeps_conditions
        self._trouble = Trouble(
            _log, logging.WARNING, "the node's slices stay as they were", "the node's slices are as the node is again"
        )

    async def keep(self) -> None:
        """Publish until the watch is stopped."""
        failures = 0
        while not self._watch.stopped:
            if not self._is_ours():
                # No event says that the other plugin has ended.
                await _first(_LOOK_AT_SIBLINGS, self._watch.ending.wait())
                continue
            change = self._watch.next_change
            try:
                version = await self.publish()
                failures = 0
                self._trouble.tell(None)
                await _first(None, change.wait(), self._until_touched(version))
                continue
            except Conflict as error:
                if failures:
                    self._trouble.tell(error)
            except ProgramError as error:
                self._trouble.tell(error)
            except Exception:
                # A defect of ours must not end what is served.
                _log.exception("the node's slices stay as they were")
            pause = min(_FIRST_PAUSE * 2.0 ** min(failures, 10), _LONGEST_PAUSE)
            failures += 1
            await _first(pause * random.uniform(0.5, 1.0), self._watch.ending.wait())  # noqa: S311 (no secret)

    async def publish(self) -> str:
        """Write the slices that differ; return the version of the server's list. ProgramError if that fails."""
        if self._uid is None:
            self._uid = await self._api.node_uid(self._node)
        listed, version = await self._api.slices(self._node)
        published = {each["metadata"]["name"]: each for each in listed}
        generation = max((_generation(each) for each in listed), default=0)
        wanted = self._wanted(max(generation, 1))
        names = {each["metadata"]["name"] for each in wanted}
        differing = [each for each in wanted if not self._is_as_wanted(each, published)]
        if not differing and published.keys() == names:
            return version
        if generation > _MOST:
            # Somebody wrote the highest number. The pool begins anew.
            for name in published:
                await self._api.delete(name)
            published, generation = {}, 0
        # One slice alone keeps the generation, as with Kubernetes' own helper: a scheduler never sees half of a write.
        is_one = len(differing) == 1 and published.keys() == names
        took_counters = self._takes_counters
        for new in differing if is_one else self._wanted(generation + 1):
            await self._write(new, published.get(new["metadata"]["name"]))
            if self._takes_counters is not took_counters:
                return await self.publish()
        for name in sorted(published.keys() - names):
            await self._api.delete(name)
            self._sent.pop(name, None)
        count = sum(len(each["spec"].get("devices", ())) for each in wanted)
        _log.info("published %d devices in %d slices", count, len(wanted), extra={"devices": count})
        return version

    def _wanted(self, generation: int) -> list[SliceObject]:
        assert self._uid is not None
        snapshot = self._watch.snapshot
        owner = OwningNode(self._node, self._uid)
        wanted = slices(snapshot, owner, generation=generation, counters=self._takes_counters)
        if not (snapshot.inventory.published or snapshot.config.uses_dra):
            return []  # the config no longer asks for slices
        return [self._taken(each) for each in wanted]

    def _taken(self, each: SliceObject) -> SliceObject:
        """Return a slice without fields that the API server drops, and without conditions that nobody would set."""
        if not (self._takes_conditions and self._keeps_conditions()):
            each = _without_conditions(each)
        return each if self._takes_taints else _without_tainted(each)

    def _is_as_wanted(self, wanted: SliceObject, published: dict[str, SliceObject]) -> bool:
        name = wanted["metadata"]["name"]
        if (has := published.get(name)) is None:
            return False
        sent, version = self._sent.get(name, (None, None))
        if wanted == sent and has["metadata"].get("resourceVersion") == version:
            return True
        return _as_compared(has) == _as_compared(wanted)

    async def _write(self, new: SliceObject, has: SliceObject | None) -> None:
        """Write a slice in place of `has`, the server's slice of that name, if any."""
        name = new["metadata"]["name"]
        new = self._taken(new)
        counts = "sharedCounters" in new["spec"] or _has(new, "consumesCounters")
        try:
            answer = await self._written(new, has)
        except Invalid as error:
            if not counts:
                raise
            self._leave_out_counters(str(error))
            return
        self._sent[name] = (new, answer["metadata"]["resourceVersion"])
        if _as_compared(answer) == _as_compared(new):
            return
        if counts and not (answer["spec"].get("sharedCounters") or _has(answer, "consumesCounters")):
            # Without them all vGPUs that a card can become would look free at once.
            self._leave_out_counters("it drops them")
            return
        if self._takes_taints and _has(new, "taints") and not _has(answer, "taints"):
            # Without its taint a card that cannot be handed out, or is a team's, looks like any other.
            self._takes_taints = False
            _log.warning(
                "the API server takes no taints of devices: what is unhealthy or a team's is left out of the slices"
            )
            await self._write(new, answer)
            return
        if self._takes_conditions and _has(new, "bindingConditions") and not _has(answer, "bindingConditions"):
            self._takes_conditions = False
            _log.info("the API server takes no binding conditions: cards are bound when their pods are on this node")
            await self._write(new, answer)
            return
        _log.warning("the API server keeps slice %s otherwise than it was sent: fields were dropped", name)

    async def _written(self, new: SliceObject, has: SliceObject | None) -> SliceObject:
        if has is None:
            return await self._api.create(new)
        metadata = {**new["metadata"], "resourceVersion": has["metadata"]["resourceVersion"]}
        try:
            return await self._api.replace({**new, "metadata": metadata})
        except NotFound:
            return await self._api.create(new)

    def _leave_out_counters(self, why: str) -> None:
        self._takes_counters = False
        _log.warning(
            "the API server takes no counters of devices, so vGPUs that are made when claimed are left out of the "
            "slices: turn on DRAPartitionableDevices (Kubernetes 1.36 has it on), and restart the plugin: %s",
            why,
        )

    async def _until_touched(self, version: str) -> None:
        """Return when another client has written or deleted a slice, or it is time to look again."""
        with contextlib.suppress(ProgramError):
            async for changed in self._api.changes(self._node, version):
                metadata = changed.get("metadata") or {}
                _, ours = self._sent.get(metadata.get("name", ""), (None, None))
                if ours is None or metadata.get("resourceVersion") != ours:
                    return
            return
        # The watch was refused, or ended by the server.
        await asyncio.sleep(random.uniform(_FIRST_PAUSE, 1.0))  # noqa: S311 (no secret)


async def _first(at_most: float | None, *waiting: Coroutine[Any, Any, object]) -> None:
    """Wait for the first of these coroutines, at most `at_most` seconds; cancel the others."""
    tasks = [asyncio.ensure_future(each) for each in waiting]
    try:
        done, _ = await asyncio.wait(tasks, timeout=at_most, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _as_compared(each: SliceObject) -> tuple[Any, ...]:
    """Return the parts of a slice that are compared: its owners and its spec, without the time that the server adds to
    taints."""
    owners = tuple((owner.get("kind"), owner.get("uid")) for owner in each["metadata"].get("ownerReferences") or ())
    spec = {**each["spec"], "devices": [_device(device) for device in each["spec"].get("devices") or ()]}
    return owners, spec


def _device(device: SliceObject) -> SliceObject:
    if "taints" not in device:
        return device
    return {**device, "taints": [{**taint, "timeAdded": None} for taint in device["taints"]]}


def _without_tainted(each: SliceObject) -> SliceObject:
    if "devices" not in each["spec"]:
        return each
    devices = [device for device in each["spec"]["devices"] if "taints" not in device]
    return {**each, "spec": {**each["spec"], "devices": devices}}


def _without_conditions(each: SliceObject) -> SliceObject:
    if "devices" not in each["spec"]:
        return each
    devices = [
        {field: value for field, value in device.items() if field not in _CONDITIONS}
        for device in each["spec"]["devices"]
    ]
    return {**each, "spec": {**each["spec"], "devices": devices}}


def _has(each: SliceObject, field: str) -> bool:
    return any(device.get(field) for device in each["spec"].get("devices") or ())


def _generation(each: SliceObject) -> int:
    return int(((each.get("spec") or {}).get("pool") or {}).get("generation") or 0)
