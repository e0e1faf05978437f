"""Life beside the kubelet: a socket for each resource, registration, and registration again whenever it is lost.

The kubelet empties its plugin directory when it starts, and Register returning OK does not mean that it watches. So a
resource counts as served only while its socket stands, kubelet.sock is the one it registered with, and ListAndWatch
was opened; otherwise it starts over with a socket of a new name (kubelets tell plugins apart by name).
"""

import asyncio
import hashlib
import logging
import os
import secrets
import socket
import time
from pathlib import Path
from urllib.parse import quote

import grpc

from plugin.errors import Refusal
from plugin.server import DevicePluginServicer
from plugin.v1beta1 import deviceplugin_pb2 as api
from plugin.v1beta1 import deviceplugin_pb2_grpc
from plugin.watch import Watch

_log = logging.getLogger(__name__)

#: Where the kubelet has its plugins' sockets, whatever its --root-dir (pluginapi.DevicePluginPath).
KUBELET_DIR = Path("/var/lib/kubelet/device-plugins")

_VERSION = "v1beta1"
_SOCKET_PREFIX = "gpu-plugin-"
_LONGEST_SOCKET_PATH = 107  # sun_path has 108 bytes, one of them the final zero

_RESCAN = 5.0  # seconds between two looks at sysfs
_LOOK_AT_SOCKETS = 1.0  # seconds
_KUBELET_WATCHES_WITHIN = 10.0  # seconds from Register to ListAndWatch; the kubelet dials at once
_BACKOFF = (1.0, 2.0, 5.0, 10.0)  # seconds, the last one repeated


def kubelet_directory(path: Path) -> Path:
    """The directory, absolute; Refusal where it is missing or its path is too long for a socket."""
    path = path.absolute()
    if not os.path.isdir(path):  # noqa: PTH112 (Path.is_dir raises for a name that is too long)
        raise Refusal(f"{path}: no such directory; expected the kubelet's device plugin directory")
    longest = os.fsencode(path / _socket_name("any"))
    if len(longest) > _LONGEST_SOCKET_PATH:
        raise Refusal(f"{path}: sockets below it would have {len(longest)} bytes; 107 is the most Linux takes")
    return path


async def serve(watch: Watch, kubelet_dir: Path) -> None:
    """Serve every resource that the node has, now or later, until the watch is stopped."""
    _remove_dead_sockets(kubelet_dir)
    served: set[str] = set()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(watch.keep_looking(_RESCAN))]
        while not watch.stopped:
            change = watch.next_change
            for resource in sorted(watch.inventory.on_offer.keys() - served):
                served.add(resource)
                tasks.append(group.create_task(_keep_serving(resource, watch, kubelet_dir)))
            await change.wait()
        for task in tasks:
            task.cancel()


async def _keep_serving(resource: str, watch: Watch, kubelet_dir: Path) -> None:
    failures = 0
    while not watch.stopped:
        try:
            await _serve_until_lost(resource, watch, kubelet_dir)
            failures = 0
        except (grpc.aio.AioRpcError, OSError, RuntimeError) as error:
            # RuntimeError is what grpc raises when it cannot bind the socket.
            reason = error.details() if isinstance(error, grpc.aio.AioRpcError) else error
            pause = _BACKOFF[min(failures, len(_BACKOFF) - 1)]
            failures += 1
            _log.warning("%s: not registered, trying again in %g s: %s", resource, pause, reason)
            await asyncio.sleep(pause)


async def _serve_until_lost(resource: str, watch: Watch, kubelet_dir: Path) -> None:
    """Serve and register once; return when the kubelet no longer has this registration."""
    ours, theirs = kubelet_dir / _socket_name(resource), kubelet_dir / "kubelet.sock"
    # Which kubelet.sock it is must be known before Register: the kubelet may restart right after it.
    kubelet = await _kubelet_there(theirs)
    servicer = DevicePluginServicer(resource, watch)
    server = grpc.aio.server()
    deviceplugin_pb2_grpc.add_DevicePluginServicer_to_server(servicer, server)
    try:
        server.add_insecure_port(_target(ours))
        await server.start()
        await _register(resource, ours.name, theirs)
        try:
            # Not wait_for, which in Python 3.11 swallows a cancellation that comes with the event.
            async with asyncio.timeout(_KUBELET_WATCHES_WITHIN):
                await servicer.watched.wait()
        except TimeoutError:
            _log.warning("%s: registered, but the kubelet does not watch; registering again", resource)
            return
        _log.info("%s: registered, and watched by the kubelet", resource)
        unwatched_since = time.monotonic()
        while not watch.stopped:
            if not ours.exists() or _identity(theirs) != kubelet:
                _log.info("%s: the kubelet's socket or ours is another one; registering again", resource)
                return
            if servicer.streams:
                unwatched_since = time.monotonic()
            # The delay keeps two plugin pods from taking the resource from each other for ever on kubelets that hold
            # one registration only.
            elif time.monotonic() - unwatched_since > _KUBELET_WATCHES_WITHIN:
                _log.warning("%s: the kubelet watches no more; registering again", resource)
                return
            await asyncio.sleep(_LOOK_AT_SOCKETS)
    finally:
        # Streams end by themselves when the watch is stopped; the grace lets their last message through.
        await server.stop(grace=1.0 if watch.stopped else None)
        _remove(ours)


async def _kubelet_there(path: Path) -> tuple[int, int, int]:
    """Wait for the kubelet's socket; which file it is."""
    if _identity(path) is None:
        _log.info("waiting for the kubelet: %s does not exist", path)
    while (identity := _identity(path)) is None:
        await asyncio.sleep(_LOOK_AT_SOCKETS)
    return identity


async def _register(resource: str, endpoint: str, kubelet: Path) -> None:
    # Go's gRPC servers refuse the encoded path that a unix: target would make the authority.
    options = (("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0))
    async with grpc.aio.insecure_channel(_target(kubelet), options=options) as channel:
        request = api.RegisterRequest(version=_VERSION, endpoint=endpoint, resource_name=resource)
        await deviceplugin_pb2_grpc.RegistrationStub(channel).Register(request, timeout=10.0)


def _socket_name(resource: str) -> str:
    """A name of its own for every start, and short whatever the resource is called."""
    return f"{_SOCKET_PREFIX}{hashlib.sha256(resource.encode()).hexdigest()[:8]}-{secrets.token_hex(4)}.sock"


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Which file this is; None while there is none. Inode numbers are used again, so the time of making counts."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _target(path: Path) -> str:
    """The socket as gRPC names it: a URI, in which some characters of a path have to be quoted."""
    return f"unix:{quote(str(path))}"


def _remove_dead_sockets(kubelet_dir: Path) -> None:
    """Remove the sockets of ours that nobody answers on: a plugin that was killed leaves them behind."""
    for path in kubelet_dir.glob(f"{_SOCKET_PREFIX}*.sock"):
        if not path.is_socket():
            continue
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(_LOOK_AT_SOCKETS)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                _remove(path)
            except OSError as error:
                _log.warning("%s: left as it is: %s", path, error)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("%s: cannot be removed: %s", path, error.strerror)
