"""The driver as a whole, beside the device plugin on the same watch: it registers with the kubelet, publishes the
devices and reconciles the claims.

The kubelet finds the socket in its plugins_registry, and speaks with the youngest of a driver's sockets. A kubelet that
starts looks there again, so a registration is lost only with the socket.
"""

import asyncio
import contextlib
import logging
import random
import secrets
from pathlib import Path

import grpc

from pci.slices import DRIVER
from plugin.dra.apiserver import APIServer
from plugin.dra.conditions import Conditions
from plugin.dra.preparation import Claims, DriverSettings
from plugin.dra.publisher import Publisher
from plugin.dra.server import VERSIONS, DRAServicer, HealthServicer, serve_health
from plugin.dra.status import Statuses
from plugin.fabric.ownership import Partitions
from plugin.kubelet_api.dra_v1 import dra_pb2_grpc
from plugin.kubelet_api.pluginregistration_v1 import registration_pb2_grpc
from plugin.watch.registry import RegistrationServicer
from plugin.watch.sockets import PREFIX, identity_of, kubelet_directory, remove, remove_dead_sockets, target
from plugin.watch.watch import Watch
from program.errors import ProgramError
from program.trouble import Trouble

_log = logging.getLogger(__name__)

_SOCKETS = f"{PREFIX}dra-"
_LOOK_AT_SOCKET = 2.0  # seconds
_RECONCILE_EVERY, _RECONCILE_AGAIN = 600.0, 25.0  # seconds; the second if something is left to take back
_ENDS_WITHIN = 5.0  # seconds, for claims that are being prepared


async def drive(watch: Watch, partitions: Partitions, settings: DriverSettings) -> None:
    """Run the node's driver until the watch is stopped; ProgramError if the driver cannot be started."""
    watch.counters.watched[DRIVER] = False
    registry = kubelet_directory(settings.registry, "plugins_registry", "--plugins-registry")
    async with APIServer.connected(settings.kubeconfig) as api:
        claims = Claims(watch, api, partitions, settings)
        # Before anything is offered: prepared devices are taken.
        claims.recall()
        socket = _Socket(registry)
        statuses = Statuses(api, settings.node)
        conditions = Conditions(watch, api, claims, statuses, settings.node, socket.is_the_youngest)
        publisher = Publisher(watch, api, settings.node, socket.is_the_youngest, lambda: conditions.are_kept)
        async with asyncio.TaskGroup() as group:
            group.create_task(_serve(watch, settings.node, claims, statuses, socket))  # ends once it has answered
            others = [group.create_task(each) for each in (publisher.keep(), conditions.keep(), _reconcile(claims))]
            await watch.ending.wait()
            for task in others:
                task.cancel()


class _Socket:
    """The driver's socket, with a new name at every start."""

    def __init__(self, registry: Path) -> None:
        self._registry = registry
        self.path = registry / f"{_SOCKETS}{secrets.token_hex(4)}.sock"

    def is_the_youngest(self) -> bool:
        """Whether the socket exists, and no other driver of this node has started later."""
        ours = identity_of(self.path)
        if ours is None:
            return False
        others = [path for path in self._registry.glob(f"{_SOCKETS}*.sock") if path != self.path]
        if others:
            remove_dead_sockets(self._registry)
        ages = [identity for path in others if (identity := identity_of(path)) is not None]
        return all((identity[2], identity[1]) < (ours[2], ours[1]) for identity in ages)


async def _serve(watch: Watch, node: str, claims: Claims, statuses: Statuses, socket: _Socket) -> None:
    """Serve on the socket, and again whenever the socket is removed."""

    def hear(registered: bool) -> None:
        watch.counters.watched[DRIVER] = registered
        if registered:
            _log.info("%s: registered with the kubelet", DRIVER)

    while not watch.stopped:
        server = grpc.aio.server()
        dra_pb2_grpc.add_DRAPluginServicer_to_server(DRAServicer(claims, statuses, node, watch.counters), server)
        serve_health(HealthServicer(watch, node), server)
        registration = RegistrationServicer(
            kind="DRAPlugin", name=DRIVER, socket=socket.path, versions=VERSIONS, hear=hear
        )
        registration_pb2_grpc.add_RegistrationServicer_to_server(registration, server)
        remove_dead_sockets(socket.path.parent)
        try:
            server.add_insecure_port(target(socket.path))
            await server.start()
            watch.counters.registrations[DRIVER] += 1
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
            watch.counters.watched[DRIVER] = False
            await server.stop(grace=_ENDS_WITHIN)
            remove(socket.path)


async def _reconcile(claims: Claims) -> None:
    trouble = Trouble(_log, logging.WARNING, "claims are not reconciled")
    while True:
        is_done = False
        claims.is_begun.clear()
        try:
            is_done = await claims.reconcile()
            trouble.tell(None)
        except ProgramError as error:
            trouble.tell(error)
        except Exception:
            _log.exception("claims are not reconciled")
        jitter = random.uniform(0.8, 1.2)  # noqa: S311 (no secret)
        if is_done:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RECONCILE_EVERY * jitter):
                    await claims.is_begun.wait()
        await asyncio.sleep(_RECONCILE_AGAIN * jitter)
