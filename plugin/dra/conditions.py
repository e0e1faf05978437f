"""Meets the binding conditions that the slices promise (KEP-5007): binds the cards of a claim, makes its vGPUs and
activates its partition before its pod is on this node. If that fails, the scheduler places the pod elsewhere.

Claims cannot be selected by node, so all claims of the cluster are watched, but only on nodes where devices are bound
or made, or partitions activated, for claims.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from plugin.cards.config import Bind
from plugin.dra.apiserver import APIServer, Forbidden, NotFound
from plugin.dra.claims import Reference, awaits, has_conditions, read_claim
from plugin.dra.preparation import Claims
from plugin.dra.status import States, Statuses, of_devices, of_error
from plugin.dra.tasks import StillAtWork
from plugin.watch.watch import Watch
from program.errors import ProgramError
from program.trouble import Trouble

_log = logging.getLogger(__name__)

_PAUSE = 2.0  # seconds between two attempts


class Conditions:
    """Watches claims while `is_ours` says that this plugin serves the node. Lives in the watch's event loop.

    `are_kept` is False while nobody would set the conditions: then a card with a condition in its slice would reach no
    pod.
    """

    def __init__(
        self, watch: Watch, api: APIServer, claims: Claims, statuses: Statuses, node: str, is_ours: Callable[[], bool]
    ) -> None:
        self.are_kept = False
        self._watch = watch
        self._api = api
        self._claims = claims
        self._statuses = statuses
        self._node = node
        self._is_ours = is_ours
        self._at_work: dict[str, asyncio.Task[None]] = {}
        self._ready: set[str] = set()
        self._trouble = Trouble(_log, logging.WARNING, "cards are bound only when their pods are on this node")

    async def keep(self) -> None:
        """Meet the conditions until the watch is stopped."""
        while not self._watch.stopped:
            if self._is_wanted():
                try:
                    await self._follow()
                except Forbidden:
                    self._set_kept(to=False)
                    self._trouble.tell("the API server does not allow to list claims; apply deploy/dra of this version")
                except ProgramError as error:
                    _log.debug("%s", error)  # the claims are listed anew
                except Exception:
                    # A defect of ours must not end what is served.
                    _log.exception("cards are bound only when their pods are on this node")
            else:
                self._set_kept(to=False)
            await asyncio.sleep(_PAUSE)

    def _is_wanted(self) -> bool:
        snapshot = self._watch.snapshot
        config = snapshot.config
        for_claims = config.bind is Bind.WHEN_CLAIMED or config.fabric is not None or bool(snapshot.claimable)
        return self._is_ours() and for_claims

    async def _follow(self) -> None:
        listed, version = await self._api.claims(self._node)
        for claim in listed:
            self._hear(claim)
        self._trouble.tell(None)
        self._set_kept(to=True)
        while self._is_wanted():
            async for changed in self._api.claim_changes(version):
                version = changed["metadata"]["resourceVersion"]
                self._hear(changed)

    def _set_kept(self, *, to: bool) -> None:
        if self.are_kept is not to:
            self.are_kept = to
            self._watch.wake()  # the publisher waits for that

    def _hear(self, claim: Mapping[str, Any]) -> None:
        metadata = claim["metadata"]
        uid = metadata["uid"]
        is_left = uid in self._ready and not has_conditions(claim, self._node)
        if uid not in self._at_work and (is_left or awaits(claim, self._node)):
            task = asyncio.create_task(self._fulfil(Reference(metadata["namespace"], metadata["name"], uid)))
            self._at_work[uid] = task
            task.add_done_callback(lambda ended: self._forget(uid, ended))

    def _forget(self, uid: str, ended: asyncio.Task[None]) -> None:
        del self._at_work[uid]
        if not ended.cancelled() and (defect := ended.exception()) is not None:
            _log.error("the conditions of claim %s are not kept", uid, exc_info=defect)

    async def _fulfil(self, reference: Reference) -> None:
        """Make the claim ready, or write why that fails, until it no longer waits for that; take back a claim whose pod
        did not come."""
        while self._is_ours():
            try:
                claim = await self._claim(reference)
                if not has_conditions(claim, self._node):
                    self._ready.discard(reference.uid)
                    await self._claims.give_up(reference.uid)
                    return
                if not awaits(claim, self._node):
                    return
                if (states := await self._attempted(reference, claim)) is not None:
                    await self._statuses.write(reference, states)
                    continue
            except Forbidden:
                self._set_kept(to=False)
                self._trouble.tell("the API server does not allow their status; apply deploy/dra of this version")
            except ProgramError as error:
                _log.warning("claim %s is not ready yet: %s", reference, error)
            await asyncio.sleep(_PAUSE)

    async def _claim(self, reference: Reference) -> Mapping[str, Any]:
        try:
            claim = await self._api.claim(reference)
        except NotFound:
            return {}
        return claim if claim["metadata"]["uid"] == reference.uid else {}

    async def _attempted(self, reference: Reference, claim: Mapping[str, Any]) -> States | None:
        """Return the states of the claim's devices after an attempt; None if the attempt goes on."""
        try:
            devices = await self._claims.make_ready(read_claim(reference, claim, self._node))
        except StillAtWork:
            return None
        except ProgramError as error:
            _log.warning("claim %s cannot be had here: %s", reference, error, extra={"claim": str(reference)})
            return of_error(error)
        self._ready.add(reference.uid)
        return of_devices(devices, "Bound")
