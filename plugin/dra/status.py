"""The status of each device in its claim (KEP-4817): what the driver did with the device. Two of the conditions there
are the binding conditions of the slices (KEP-5007): the scheduler waits for READY before it binds the claim's pod to
the node, and after FAILED takes other devices.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

from pci.slices import DRIVER
from plugin.dra.apiserver import APIServer, Conflict, Forbidden, NotFound
from plugin.dra.checkpoint import PreparedDevice
from plugin.dra.claims import FAILED, READY, Reference, ours
from plugin.dra.tasks import StillAtWork
from program.errors import ProgramError
from program.trouble import Trouble

_log = logging.getLogger(__name__)

_TRIES = 5
_LONGEST = 1000  # characters of a condition's message, of 32768


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """The state of a claim's device: READY or not, FAILED or not, the reason in one word, and more for people
    (`message`) and programs (`data`)."""

    is_ready: bool
    is_failed: bool
    reason: str
    message: str
    data: Mapping[str, Any] = field(default_factory=dict)


#: The state of a device by its name; None if there is nothing to report.
States: TypeAlias = Callable[[str], DeviceStatus | None]


def of_devices(devices: Iterable[PreparedDevice], reason: str) -> States:
    """Return the states of devices that a claim has."""
    return {
        device.name: DeviceStatus(
            is_ready=True,
            is_failed=False,
            reason=reason,
            message=f"{device.id}: {_how(device)}",
            data={"address": device.id, "bound": list(device.bound)},
        )
        for device in devices
    }.get


def _how(device: PreparedDevice) -> str:
    if device.is_made:
        return "made for this claim"
    return "bound to vfio for this claim" if device.bound else "on vfio before this claim"


def of_error(error: ProgramError) -> States:
    """Return the states of all devices of a claim that does not get them, or not yet."""
    goes_on = isinstance(error, StillAtWork)
    reason = "StillAtWork" if goes_on else "Refused"
    state = DeviceStatus(is_ready=False, is_failed=not goes_on, reason=reason, message=str(error)[:_LONGEST])
    return lambda _: state


def with_states(claim: Mapping[str, Any], node: str, states: States, now: datetime) -> dict[str, Any] | None:
    """Return the claim with the states of its devices of this node; None if it has them already."""
    status = claim.get("status") or {}
    known = {_key(each): each for each in status.get("devices") or ()}
    devices = dict(known)
    for result in ours(claim, node):
        if (state := states(result["device"])) is not None:
            devices[_key(result)] = _status_of(result, state, known.get(_key(result), {}), now)
    return None if devices == known else {**claim, "status": {**status, "devices": list(devices.values())}}


def _status_of(
    result: Mapping[str, Any], state: DeviceStatus, known: Mapping[str, Any], now: datetime
) -> dict[str, Any]:
    before = {each["type"]: each for each in known.get("conditions") or ()}
    conditions = []
    for kind, holds in ((READY, state.is_ready), (FAILED, state.is_failed)):
        new = {"type": kind, "status": str(holds), "reason": state.reason, "message": state.message}
        old = before.get(kind, {})
        since = old["lastTransitionTime"] if old.get("status") == new["status"] else f"{now:%Y-%m-%dT%H:%M:%SZ}"
        conditions.append({**new, "lastTransitionTime": since})
    data = {"data": dict(state.data)} if state.data else {}
    return {"driver": DRIVER, "pool": result["pool"], "device": result["device"], "conditions": conditions, **data}


def _key(each: Mapping[str, Any]) -> tuple[Any, ...]:
    return each.get("driver"), each.get("pool"), each.get("device"), each.get("shareID")


class Statuses:
    """Writes states into claims. Lives in one event loop."""

    def __init__(self, api: APIServer, node: str) -> None:
        self._api = api
        self._node = node
        self._writing: dict[str, asyncio.Task[None]] = {}
        self._trouble = Trouble(_log, logging.WARNING, "what was done with devices is not written into their claims")

    async def write(self, reference: Reference, states: States) -> None:
        """Write the states into the claim, unless it has them already; ProgramError if that fails."""
        for _ in range(_TRIES):
            claim = await self._api.claim(reference)
            if claim["metadata"]["uid"] != reference.uid:
                return
            new = with_states(claim, self._node, states, datetime.now(UTC))
            if new is None:
                return
            try:
                await self._api.replace_status(reference, new)
            except Conflict:
                continue
            self._trouble.tell(None)
            return

    def write_soon(self, reference: Reference, states: States) -> None:
        """Write the states in the background, trying once; only the latest states of a claim matter."""
        if (older := self._writing.get(reference.uid)) is not None:
            older.cancel()
        task = self._writing[reference.uid] = asyncio.create_task(self._write_if_it_can(reference, states))
        task.add_done_callback(lambda ended: self._forget(reference.uid, ended))

    async def _write_if_it_can(self, reference: Reference, states: States) -> None:
        try:
            await self.write(reference, states)
        except NotFound:
            return
        except Forbidden:
            self._trouble.tell("the API server does not allow it; apply deploy/dra of this version")
        except ProgramError as error:
            _log.debug("%s", error)  # the API server's absence is told elsewhere

    def _forget(self, uid: str, ended: asyncio.Task[None]) -> None:
        if self._writing.get(uid) is ended:
            del self._writing[uid]
        if not ended.cancelled() and (defect := ended.exception()) is not None:
            _log.error("the status of claim %s was not written", uid, exc_info=defect)
