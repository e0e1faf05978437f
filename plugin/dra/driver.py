"""The driver as a whole: registered with the kubelet, its devices published, claims reconciled; beside the device
plugin, on the same watch.

The kubelet finds the socket in its plugins_registry, and speaks with the youngest of a driver's sockets. One that
starts looks there anew, so a registration is lost only with the socket.
"""

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from pci.slices import DRIVER
from plugin.dra.apiserver import APIServer
from plugin.dra.binder import Binder
from plugin.dra.cdi import Files
from plugin.dra.checkpoint import Checkpoint
from plugin.dra.preparation import Claims, Kept
from plugin.dra.publisher import Publisher
from plugin.dra.server import VERSIONS, DRAServicer, HealthServicer
from plugin.fabric.ownership import Partitions
from plugin.kubelet_api.dra_health_v1alpha1 import health_pb2_grpc
from plugin.kubelet_api.dra_v1 import dra_pb2_grpc
from plugin.kubelet_api.pluginregistration_v1 import registration_pb2_grpc
from plugin.watch.counters import Counters
from plugin.watch.registry import RegistrationServicer
from plugin.watch.sockets import PREFIX, identity_of, kubelet_directory, remove, remove_dead_sockets, target
from plugin.watch.watch import Watch
from program.errors import ProgramError

_log = logging.getLogger(__name__)

_SOCKETS = f"{PREFIX}dra-"
_LOOK_AT_SOCKET = 2.0  # seconds
_RECONCILE_EVERY, _RECONCILE_AGAIN = 600.0, 30.0  # seconds; the second where something is left
_ENDS_WITHIN = 5.0  # seconds, for claims that are being prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the driver is told: its node's name, where it keeps what it has prepared, the runtime's directory for CDI,
    the kubelet's plugins_registry, a kubeconfig or None for the pod's own account, the ID of this boot, and where the
    former drivers of what is bound are kept."""

    node: str
    state: Path
    cdi: Path
    registry: Path
    kubeconfig: Path | None
    boot: str
    former: Path


async def drive(watch: Watch, counters: Counters, partitions: Partitions, settings: Settings) -> None:
    """Be the node's driver until the watch is stopped. ProgramError if something is wrong from the start."""
    counters.watched[DRIVER] = False
    registry = kubelet_directory(settings.registry, "plugins_registry", "--plugins-registry")
    async with APIServer.connected(settings.kubeconfig) as api:
        kept = Kept(
            Checkpoint(settings.state, settings.boot),
            Files(settings.cdi, settings.state),
            Binder(watch.sources.sys, settings.former),
        )
        claims = Claims(watch, api, settings.node, kept, partitions)
        # Before anything is offered: what was prepared before is taken.
        claims.recall()
        socket = _Socket(registry)
        publisher = Publisher(watch, api, settings.node, socket.is_the_youngest)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(task)
                for task in (
                    _serve(watch, settings.node, claims, socket, counters),
                    publisher.keep(),
                    _reconcile(claims),
                )
            ]
            await watch.ending.wait()
            # The first ends by itself, once it has answered.
            for task in tasks[1:]:
                task.cancel()


class _Socket:
    """The driver's socket, of a new name at every start."""

    def __init__(self, registry: Path) -> None:
        self._registry = registry
        self.path = registry / f"{_SOCKETS}{secrets.token_hex(4)}.sock"

    def is_the_youngest(self) -> bool:
        """Whether it stands, and no driver of ours on this node has begun later."""
        ours = identity_of(self.path)
        if ours is None:
            return False
        others = [path for path in self._registry.glob(f"{_SOCKETS}*.sock") if path != self.path]
        if others:
            remove_dead_sockets(self._registry)
        ages = [identity for path in others if (identity := identity_of(path)) is not None]
        return all((identity[2], identity[1]) < (ours[2], ours[1]) for identity in ages)


async def _serve(watch: Watch, node: str, claims: Claims, socket: _Socket, counters: Counters) -> None:
    """Serve on the socket, and again whenever it is taken away."""
    while not watch.stopped:
        server = grpc.aio.server()
        dra_pb2_grpc.add_DRAPluginServicer_to_server(DRAServicer(claims, node, counters), server)
        health_pb2_grpc.add_DRAResourceHealthServicer_to_server(HealthServicer(watch, node), server)
        registration = RegistrationServicer(
            kind="DRAPlugin", name=DRIVER, socket=socket.path, versions=VERSIONS, hear=_heard(counters)
        )
        registration_pb2_grpc.add_RegistrationServicer_to_server(registration, server)
        remove_dead_sockets(socket.path.parent)
        try:
            server.add_insecure_port(target(socket.path))
            await server.start()
            counters.registrations[DRIVER] += 1
            ours = identity_of(socket.path)
            while not watch.stopped and identity_of(socket.path) == ours:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_AT_SOCKET):
                        await watch.ending.wait()
        except (OSError, RuntimeError) as error:
            # RuntimeError is what grpc raises when it cannot bind the socket.
            _log.warning("%s: not served, trying again: %s", DRIVER, error)
            await asyncio.sleep(_LOOK_AT_SOCKET)
        finally:
            counters.watched[DRIVER] = False
            await server.stop(grace=_ENDS_WITHIN)
            remove(socket.path)


def _heard(counters: Counters) -> Callable[[bool], None]:
    def hear(registered: bool) -> None:
        counters.watched[DRIVER] = registered
        if registered:
            _log.info("%s: registered with the kubelet", DRIVER)

    return hear


async def _reconcile(claims: Claims) -> None:
    while True:
        is_done = False
        try:
            is_done = await claims.reconcile()
        except ProgramError as error:
            _log.warning("claims are not reconciled: %s", error)
        except Exception:
            _log.exception("claims are not reconciled")
        pause = _RECONCILE_EVERY if is_done else _RECONCILE_AGAIN
        await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 (no secret)
