"""A socket for each resource, registered with the kubelet, and registered again whenever the registration is lost.

The kubelet empties its plugin directory when it starts, and Register returning OK does not mean that it watches. So a
resource counts as served only while its socket exists, kubelet.sock is the one that it was registered with, and
ListAndWatch was opened; otherwise all begins again with a socket of a new name (kubelets tell plugins apart by name).
"""

import asyncio
import contextlib
import hashlib
import logging
import math
import random
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

import grpc

from plugin.device_plugin.offer import CardOffer, NodeDeviceOffer, Offer
from plugin.device_plugin.server import DevicePluginServicer
from plugin.fabric.ownership import Partitions
from plugin.kubelet_api.pluginregistration_v1 import registration_pb2_grpc
from plugin.kubelet_api.v1beta1 import deviceplugin_pb2 as api
from plugin.kubelet_api.v1beta1 import deviceplugin_pb2_grpc
from plugin.watch.registry import RegistrationServicer
from plugin.watch.sockets import (
    CHANNEL,
    PREFIX,
    Kubelet,
    SocketIdentity,
    identity_of,
    remove,
    remove_dead_sockets,
    target,
)
from plugin.watch.watch import Watch

_log = logging.getLogger(__name__)

_VERSION = "v1beta1"

_LOOK_AT_SOCKETS = 10.0  # seconds, for changes that inotify missed
_LOOK_AT_SIBLINGS = 1.0  # seconds; no event tells that a plugin was killed
_KUBELET_WATCHES_WITHIN = 10.0  # seconds from registration to ListAndWatch; the kubelet dials at once
_STREAMS_END_WITHIN = 0.5  # seconds from a plugin's last message to the kubelet having taken note
_ENDS_WITHIN = 2.0  # seconds for the last lists and the end of the streams
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 10.0  # seconds
_WORTH_A_WARNING = 5  # failures in a row


async def serve(watch: Watch, kubelet: Kubelet, partitions: Partitions) -> None:
    """Serve every resource of the node, also later ones, until the watch is stopped."""
    remove_dead_sockets(kubelet.sockets)
    serving: dict[str, _Serving] = {}
    tasks: dict[str, asyncio.Task[None]] = {}
    async with asyncio.TaskGroup() as group:
        while not watch.stopped:
            change = watch.next_change
            offers = _offers(watch, partitions)
            for resource in sorted(offers.keys() - serving.keys()):
                served = serving[resource] = _Serving(offers[resource], watch, kubelet)
                tasks[resource] = group.create_task(served.keep(after=tasks.get(resource)))
            for resource, served in sorted(serving.items()):
                if resource in offers:
                    served.config = watch.snapshot.config
                # A resource whose last device is gone stays, with 0 devices; one that the config no longer has ends.
                elif served.config is not watch.snapshot.config:
                    serving.pop(resource).end(tasks[resource])
            await change.wait()
        for resource, served in serving.items():
            served.end(tasks[resource])


def _offers(watch: Watch, partitions: Partitions) -> Mapping[str, Offer]:
    listed = watch.snapshot.inventory.by_resource
    offers: list[Offer] = [CardOffer(resource, watch, partitions) for resource in listed]
    offers += [NodeDeviceOffer(device, watch) for device in watch.snapshot.config.node_devices]
    return {offer.resource: offer for offer in offers}


class _Serving:
    """One resource, served and registered as long as it is offered; `config` is the last config that offered it."""

    def __init__(self, offer: Offer, watch: Watch, kubelet: Kubelet) -> None:
        self.config = watch.snapshot.config
        self._offer = offer
        self._resource = offer.resource
        self._watch = watch
        self._kubelet = kubelet
        self._servicer: DevicePluginServicer | None = None
        self._ended = False

    def end(self, task: asyncio.Task[None]) -> None:
        """Stop serving: send an empty list, end the streams, remove the socket. `task` is the task of `keep`."""
        self._ended = True
        if self._servicer is not None:
            self._servicer.close()
        self._kubelet.moved()
        # The task may be waiting for a kubelet that does not answer.
        asyncio.get_running_loop().call_later(_ENDS_WITHIN, task.cancel)

    async def keep(self, after: asyncio.Task[None] | None) -> None:
        """Serve the resource until `end`; `after` is the task that served the same resource before."""
        if after is not None:
            await asyncio.wait([after])
        failures = 0
        while not self._ended:
            began = time.monotonic()
            before = identity_of(self._kubelet.socket)
            try:
                await self._serve_until_lost()
                failures = 0
            except (grpc.aio.AioRpcError, OSError, RuntimeError) as error:
                if time.monotonic() - began > _LONGEST_PAUSE:
                    failures = 0
                # RuntimeError is what grpc raises when it cannot bind the socket.
                reason = error.details() if isinstance(error, grpc.aio.AioRpcError) else error
                pause = _pause(failures)
                failures += 1
                # A kubelet that starts has its socket for a moment before it listens on it.
                level = logging.DEBUG if failures < _WORTH_A_WARNING else logging.WARNING
                _log.log(level, "%s: not registered, trying again in %.2g s: %s", self._resource, pause, reason)
                # A kubelet that was killed leaves its socket behind, and the pauses have grown when the next one comes.
                if await self._another_kubelet(before, pause):
                    failures = 0

    async def _serve_until_lost(self) -> None:
        """Serve and register once; return when the kubelet no longer has this registration."""
        kubelet, resource, watched = self._kubelet, self._resource, self._watch.counters.watched
        # New at every start, and short for any resource.
        ours = kubelet.sockets / f"{_sockets_of(resource)}{secrets.token_hex(4)}.sock"
        identity = None
        if kubelet.registry is None:
            # Which kubelet.sock it is must be known before Register: the kubelet may restart right after it.
            identity = await self._kubelet_there()
            if identity is None:
                return
        servicer = self._servicer = DevicePluginServicer(self._offer, self._watch, kubelet.moved)
        server = grpc.aio.server()
        deviceplugin_pb2_grpc.add_DevicePluginServicer_to_server(servicer, server)
        if kubelet.registry is not None:
            registration = RegistrationServicer(
                kind="DevicePlugin", name=resource, socket=ours, versions=(_VERSION,), hear=servicer.hear
            )
            registration_pb2_grpc.add_RegistrationServicer_to_server(registration, server)
        siblings = _siblings(ours, resource)
        try:
            server.add_insecure_port(target(ours))
            await server.start()
            if kubelet.registry is None:
                await _register(resource, ours.name, kubelet.socket)
                servicer.hear(registered=True)
            self._watch.counters.registrations[resource] += 1
            if not await self._is_watched(servicer, ours, identity):
                return
            watched[resource] = True
            _log.info("%s: registered, and watched by the kubelet", resource, extra={"resource": resource})
            await self._until_lost(servicer, ours, identity, siblings)
        finally:
            watched[resource] = False
            if self._ended:
                del watched[resource]
            servicer.close()
            self._watch.wake()
            # Streams end by themselves; the grace lets their last message through.
            await server.stop(grace=1.0 if self._ended else None)
            remove(ours)
            if servicer.watched:
                # Kubelets before 1.37 hold one registration per resource, and count it as gone when the stream of any
                # plugin that had it ends (kubernetes issue 121994). It has to be over before the next one begins.
                await self._another_kubelet(identity or identity_of(kubelet.socket), _STREAMS_END_WITHIN)

    async def _kubelet_there(self) -> SocketIdentity | None:
        """Wait for the kubelet's socket; return its identity, None if serving ends meanwhile."""
        waiting = False
        while not self._ended:
            move = self._kubelet.next_move
            if (identity := identity_of(self._kubelet.socket)) is not None:
                return identity
            if not waiting:
                _log.info("waiting for the kubelet: %s does not exist", self._kubelet.socket)
                waiting = True
            await _wait(move, _LOOK_AT_SOCKETS)
        return None

    async def _another_kubelet(self, before: SocketIdentity | None, at_most: float) -> bool:
        """Wait until the kubelet's socket differs from `before`; return False after `at_most` seconds."""
        until = time.monotonic() + at_most
        while not self._ended:
            move = self._kubelet.next_move
            now = identity_of(self._kubelet.socket)
            if now is not None and now != before:
                return True
            if (left := until - time.monotonic()) <= 0:
                return False
            await _wait(move, left)
        return False

    async def _is_watched(self, servicer: DevicePluginServicer, ours: Path, identity: SocketIdentity | None) -> bool:
        """Wait for ListAndWatch; return False to register again. A kubelet may come to a socket in its plugins_registry
        at any time."""
        until = math.inf
        while not self._ended:
            move = self._kubelet.next_move
            if servicer.registered is False:
                raise ConnectionRefusedError("the kubelet refused the registration")
            if servicer.watched:
                return True
            if self._is_void(ours, identity):
                return False
            if servicer.registered:
                until = min(until, time.monotonic() + _KUBELET_WATCHES_WITHIN)
            if (left := until - time.monotonic()) <= 0:
                _log.warning("%s: registered, but the kubelet does not watch; registering again", self._resource)
                return False
            await _wait(move, min(left, _LOOK_AT_SOCKETS))
        return False

    def _is_void(self, ours: Path, identity: SocketIdentity | None) -> bool:
        """True if the registration is lost: the kubelet's socket or ours is another one."""
        void = not ours.exists() or (identity is not None and identity_of(self._kubelet.socket) != identity)
        if void:
            _log.info("%s: the kubelet's socket or ours is another one; registering again", self._resource)
        return void

    async def _until_lost(
        self, servicer: DevicePluginServicer, ours: Path, identity: SocketIdentity | None, siblings: frozenset[str]
    ) -> None:
        while not self._ended:
            move = self._kubelet.next_move
            if self._is_void(ours, identity):
                return
            try:
                now = _siblings(ours, self._resource)
            except OSError:  # no descriptor is left: that says nothing about the sockets
                now = siblings
            if siblings and not now:
                # The sibling's last list was empty, and counts for the resource; or the kubelet held one registration.
                raise ConnectionResetError("the other plugin of this node has gone")
            siblings = now
            if servicer.lost:
                # Also where another stream goes on: kubelets before 1.37 open a second one when they are told of a
                # socket twice, and count on it alone.
                raise ConnectionResetError("the kubelet watches no more")
            await _wait(move, _LOOK_AT_SIBLINGS if siblings else _LOOK_AT_SOCKETS)


async def _wait(event: asyncio.Event, at_most: float) -> None:
    """Wait for the event, at most `at_most` seconds."""
    # Not wait_for, which in Python 3.11 swallows a cancellation that comes with the event.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(at_most):
            await event.wait()


def _pause(failures: int) -> float:
    """Return the seconds to wait after a number of failures in a row, a random time so that plugins differ."""
    return min(_FIRST_PAUSE * 2.0**failures, _LONGEST_PAUSE) * random.uniform(0.5, 1.0)  # noqa: S311 (no secret)


async def _register(resource: str, endpoint: str, kubelet: Path) -> None:
    async with grpc.aio.insecure_channel(target(kubelet), options=CHANNEL) as channel:
        request = api.RegisterRequest(version=_VERSION, endpoint=endpoint, resource_name=resource)
        await deviceplugin_pb2_grpc.RegistrationStub(channel).Register(request, timeout=10.0)


def _sockets_of(resource: str) -> str:
    """Return the prefix of the names of a resource's sockets, the same in every plugin of ours."""
    return f"{PREFIX}{hashlib.sha256(resource.encode()).hexdigest()[:8]}-"


def _siblings(ours: Path, resource: str) -> frozenset[str]:
    """Return the other sockets of ours for the resource: a rolling update runs two pods for a while."""

    def others() -> frozenset[str]:
        return frozenset(path.name for path in ours.parent.glob(f"{_sockets_of(resource)}*.sock")) - {ours.name}

    if others():
        # A killed plugin leaves its sockets behind, also those of resources that are no longer served.
        remove_dead_sockets(ours.parent)
    return others()
