"""Life beside the kubelet: a socket for each resource, registration, and registration again whenever it is lost.

The kubelet empties its plugin directory when it starts, and Register returning OK does not mean that it watches. So a
resource counts as served only while its socket stands, kubelet.sock is the one it registered with, and ListAndWatch
was opened; otherwise it starts over with a socket of a new name (kubelets tell plugins apart by name).
"""

import asyncio
import contextlib
import hashlib
import logging
import math
import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

import grpc

from plugin.errors import Refusal
from plugin.kubelet_api.pluginregistration_v1 import registration_pb2 as registration
from plugin.kubelet_api.pluginregistration_v1 import registration_pb2_grpc
from plugin.kubelet_api.v1beta1 import deviceplugin_pb2 as api
from plugin.kubelet_api.v1beta1 import deviceplugin_pb2_grpc
from plugin.serving.offer import CardOffer, NodeDeviceOffer, Offer
from plugin.serving.server import Context, DevicePluginServicer
from plugin.serving.watch import Watch

_log = logging.getLogger(__name__)

#: Which file a socket is: device, inode, time of making.
Identity: TypeAlias = tuple[int, int, int]

#: Where the kubelet has its plugins' sockets, whatever its --root-dir (pluginapi.DevicePluginPath).
KUBELET_DIR = Path("/var/lib/kubelet/device-plugins")

_VERSION = "v1beta1"
_SOCKET_PREFIX = "gpu-plugin-"
_LONGEST_SOCKET_PATH = 107  # sun_path has 108 bytes, one of them the final zero

_LOOK_AT_SOCKETS = 10.0  # seconds; what inotify missed
_LOOK_AT_SIBLINGS = 1.0  # seconds; nothing tells of a plugin that was killed
_KUBELET_WATCHES_WITHIN = 10.0  # seconds from registration to ListAndWatch; the kubelet dials at once
_STREAMS_END_WITHIN = 0.5  # seconds from a plugin's last message to the kubelet having taken note
_ENDS_WITHIN = 2.0  # seconds for the last lists and the end of the streams
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 10.0  # seconds
_WORTH_A_WARNING = 5  # failures in a row


def kubelet_directory(path: Path, what: str) -> Path:
    """The directory, absolute; Refusal where it is missing or its path is too long for a socket. `what` it is of the
    kubelet's, and how to name another, for whoever reads the error."""
    path = path.absolute()
    if not os.path.isdir(path):  # noqa: PTH112 (Path.is_dir raises for a name that is too long)
        raise Refusal(f"{path}: no such directory; expected the kubelet's {what}")
    longest = os.fsencode(path / _socket_name("any"))
    if len(longest) > _LONGEST_SOCKET_PATH:
        raise Refusal(
            f"{path}: sockets below it would have {len(longest)} bytes, and 107 is the most Linux takes; "
            f"expected the kubelet's {what}"
        )
    return path


class Kubelet:
    """The kubelet's directories, and a bell that rings when an entry of theirs comes or goes.

    `directory` is where it listens on kubelet.sock and where our sockets stand; or, with `registry`, ours stand in its
    plugins_registry, and it comes for them.
    """

    def __init__(self, directory: Path, registry: Path | None) -> None:
        self.directory = directory
        self.registry = registry
        #: Set when something comes or goes: take it before looking, then wait for it.
        self.next_move = asyncio.Event()

    @property
    def sockets(self) -> Path:
        """Where our sockets stand."""
        return self.registry or self.directory

    @property
    def socket(self) -> Path:
        return self.directory / "kubelet.sock"

    def moved(self) -> None:
        """Something came or went."""
        self.next_move.set()
        self.next_move = asyncio.Event()


class Registrations:
    """Which resources the kubelet is watching now, and how often each was registered; for metrics and health."""

    def __init__(self) -> None:
        self.watched: dict[str, bool] = {}
        self.count: dict[str, int] = {}


async def serve(watch: Watch, kubelet: Kubelet, registrations: Registrations) -> None:
    """Serve every resource that the node has, now or later, until the watch is stopped."""
    remove_dead_sockets(kubelet.sockets)
    serving: dict[str, _Serving] = {}
    tasks: dict[str, asyncio.Task[None]] = {}
    async with asyncio.TaskGroup() as group:
        while not watch.stopped:
            change = watch.next_change
            offers = _offers(watch)
            for resource in sorted(offers.keys() - serving.keys()):
                one = serving[resource] = _Serving(offers[resource], watch, kubelet, registrations)
                tasks[resource] = group.create_task(one.keep(after=tasks.get(resource)))
            for resource, one in sorted(serving.items()):
                if resource in offers:
                    one.config = watch.config
                # A resource whose last device went stays, at 0; one that the config no longer has goes.
                elif one.config is not watch.config:
                    serving.pop(resource).end(tasks[resource])
            await change.wait()
        for resource, one in serving.items():
            one.end(tasks[resource])


def _offers(watch: Watch) -> Mapping[str, Offer]:
    offers: list[Offer] = [CardOffer(resource, watch) for resource in watch.snapshot.inventory.listed]
    offers += [NodeDeviceOffer(device, watch) for device in watch.config.node_devices]
    return {offer.resource: offer for offer in offers}


class _Serving:
    """One resource, served and registered for as long as it is offered; `config` is the last one that offered it."""

    def __init__(self, offer: Offer, watch: Watch, kubelet: Kubelet, registrations: Registrations) -> None:
        self.config = watch.config
        self._offer = offer
        self._resource = offer.resource
        self._watch = watch
        self._kubelet = kubelet
        self._registrations = registrations
        self._servicer: DevicePluginServicer | None = None
        self._ended = False

    def end(self, task: asyncio.Task[None]) -> None:
        """Stop serving: an empty list, the end of the streams, no socket. `task` is the one that keeps it."""
        self._ended = True
        if self._servicer is not None:
            self._servicer.close()
        self._kubelet.moved()
        # It may be waiting for a kubelet that does not answer.
        asyncio.get_running_loop().call_later(_ENDS_WITHIN, task.cancel)

    async def keep(self, after: asyncio.Task[None] | None) -> None:
        """Serve it until it is ended; `after` is the task that kept the same resource before."""
        if after is not None:
            await asyncio.wait([after])
        failures = 0
        while not self._ended:
            began = time.monotonic()
            before = _identity(self._kubelet.socket)
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
        kubelet, resource = self._kubelet, self._resource
        ours = kubelet.sockets / _socket_name(resource)
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
            registration = RegistrationServicer(resource, ours, servicer.hear)
            registration_pb2_grpc.add_RegistrationServicer_to_server(registration, server)
        siblings = _siblings(ours, resource)
        try:
            server.add_insecure_port(_target(ours))
            await server.start()
            if kubelet.registry is None:
                await _register(resource, ours.name, kubelet.socket)
                servicer.hear(registered=True)
            self._registrations.count[resource] = self._registrations.count.get(resource, 0) + 1
            if not await self._is_watched(servicer, ours, identity):
                return
            self._registrations.watched[resource] = True
            _log.info("%s: registered, and watched by the kubelet", resource, extra={"resource": resource})
            await self._until_lost(servicer, ours, identity, siblings)
        finally:
            self._registrations.watched[resource] = False
            if self._ended:
                del self._registrations.watched[resource]
            servicer.close()
            self._watch.wake()
            # Streams end by themselves; the grace lets their last message through.
            await server.stop(grace=1.0 if self._ended else None)
            _remove(ours)
            if servicer.watched:
                # Kubelets before 1.37 hold one registration per resource, and count it as gone when the stream of any
                # plugin that had it ends (kubernetes issue 121994). It has to be over before the next one begins.
                await self._another_kubelet(identity or _identity(kubelet.socket), _STREAMS_END_WITHIN)

    async def _kubelet_there(self) -> Identity | None:
        """Wait for the kubelet's socket; which file it is. None when the resource is ended meanwhile."""
        waiting = False
        while not self._ended:
            move = self._kubelet.next_move
            if (identity := _identity(self._kubelet.socket)) is not None:
                return identity
            if not waiting:
                _log.info("waiting for the kubelet: %s does not exist", self._kubelet.socket)
                waiting = True
            await _wait(move, _LOOK_AT_SOCKETS)
        return None

    async def _another_kubelet(self, before: Identity | None, at_most: float) -> bool:
        """Wait until the kubelet's socket is another one than before, or so many seconds; whether it is."""
        until = time.monotonic() + at_most
        while not self._ended:
            move = self._kubelet.next_move
            now = _identity(self._kubelet.socket)
            if now is not None and now != before:
                return True
            if (left := until - time.monotonic()) <= 0:
                return False
            await _wait(move, left)
        return False

    async def _is_watched(self, servicer: DevicePluginServicer, ours: Path, identity: Identity | None) -> bool:
        """Wait for ListAndWatch: that the kubelet took the registration does not mean that it watches. In its
        plugins_registry it may come at any time."""
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

    def _is_void(self, ours: Path, identity: Identity | None) -> bool:
        """Whether the registration went with the kubelet it was made with, or with our socket."""
        void = not ours.exists() or (identity is not None and _identity(self._kubelet.socket) != identity)
        if void:
            _log.info("%s: the kubelet's socket or ours is another one; registering again", self._resource)
        return void

    async def _until_lost(
        self, servicer: DevicePluginServicer, ours: Path, identity: Identity | None, siblings: frozenset[str]
    ) -> None:
        while not self._ended:
            move = self._kubelet.next_move
            if self._is_void(ours, identity):
                return
            now = _siblings(ours, self._resource)
            if siblings and not now:
                # Its last list was empty, and counts for the resource; or the kubelet held one registration only.
                raise ConnectionResetError("the other plugin of this node has gone")
            siblings = now
            if servicer.lost:
                # Also where another stream goes on: kubelets before 1.37 open a second one when they are told of a
                # socket twice, and count on it alone.
                raise ConnectionResetError("the kubelet watches no more")
            await _wait(move, _LOOK_AT_SIBLINGS if siblings else _LOOK_AT_SOCKETS)


class RegistrationServicer(registration_pb2_grpc.RegistrationServicer):
    """Answers the kubelet that found our socket in its plugins_registry. `hear` is called with its yes or no."""

    def __init__(self, resource: str, socket_path: Path, hear: Callable[[bool], None]) -> None:
        self._resource = resource
        self._path = socket_path
        self._hear = hear

    async def GetInfo(self, request: registration.InfoRequest, context: Context) -> registration.PluginInfo:
        return registration.PluginInfo(
            type="DevicePlugin", name=self._resource, endpoint=str(self._path), supported_versions=[_VERSION]
        )

    async def NotifyRegistrationStatus(
        self, request: registration.RegistrationStatus, context: Context
    ) -> registration.RegistrationStatusResponse:
        if not request.plugin_registered:
            _log.warning("%s: the kubelet refused the registration: %s", self._resource, request.error)
        self._hear(request.plugin_registered)
        return registration.RegistrationStatusResponse()


async def _wait(event: asyncio.Event, at_most: float) -> None:
    """Wait for the event, or so many seconds."""
    # Not wait_for, which in Python 3.11 swallows a cancellation that comes with the event.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(at_most):
            await event.wait()


def _pause(failures: int) -> float:
    """Seconds to wait after so many failures in a row: longer each time, and never in step with other plugins."""
    return min(_FIRST_PAUSE * 2.0**failures, _LONGEST_PAUSE) * random.uniform(0.5, 1.0)  # noqa: S311 (no secret)


async def _register(resource: str, endpoint: str, kubelet: Path) -> None:
    # Go's gRPC servers refuse the encoded path that a unix: target would make the authority.
    options = (("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0))
    async with grpc.aio.insecure_channel(_target(kubelet), options=options) as channel:
        request = api.RegisterRequest(version=_VERSION, endpoint=endpoint, resource_name=resource)
        await deviceplugin_pb2_grpc.RegistrationStub(channel).Register(request, timeout=10.0)


def _socket_name(resource: str) -> str:
    """A name of its own for every start, and short whatever the resource is called."""
    return f"{_sockets_of(resource)}{secrets.token_hex(4)}.sock"


def _sockets_of(resource: str) -> str:
    """What the names of a resource's sockets begin with, in every plugin of ours."""
    return f"{_SOCKET_PREFIX}{hashlib.sha256(resource.encode()).hexdigest()[:8]}-"


def _siblings(ours: Path, resource: str) -> frozenset[str]:
    """The sockets of other plugins of ours that serve the resource too: a rolling update has two pods for a while."""

    def others() -> frozenset[str]:
        return frozenset(path.name for path in ours.parent.glob(f"{_sockets_of(resource)}*.sock")) - {ours.name}

    if others():
        # A plugin that was killed leaves them, also those of resources that nobody serves any more.
        remove_dead_sockets(ours.parent)
    return others()


def _identity(path: Path) -> Identity | None:
    """Which file this is; None while there is none. Inode numbers are used again, so the time of making counts."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _target(path: Path) -> str:
    """The socket as gRPC names it: a URI, in which some characters of a path have to be quoted."""
    return f"unix:{quote(str(path))}"


def remove_dead_sockets(kubelet_dir: Path) -> None:
    """Remove the sockets of ours that nobody answers on: a plugin that was killed leaves them behind."""
    for path in kubelet_dir.glob(f"{_SOCKET_PREFIX}*.sock"):
        if not path.is_socket():
            continue
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                _remove(path)
            except BlockingIOError:
                continue  # it has more callers than it can take
            except OSError as error:
                _log.warning("%s: left as it is: %s", path, error)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("%s: cannot be removed: %s", path, error.strerror)
