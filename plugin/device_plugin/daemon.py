"""`gpu-plugin serve`: what tells of changes, the watch over the node, and the kubelet, in one event loop."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plugin.device_plugin.kubelet import serve
from plugin.device_plugin.monitoring import HTTPPort, monitoring
from plugin.fabric.ownership import RECONCILED_EVERY, Partitions, reconciling
from plugin.watch.counters import Counters
from plugin.watch.events import Directories
from plugin.watch.keeper import keeping
from plugin.watch.listeners import listening
from plugin.watch.podresources import WORTH_WAITING, Pods, list_pods
from plugin.watch.sockets import Kubelet, kubelet_directory
from plugin.watch.watch import Sources, Watch
from program.bootstrap import STOPS, hear
from program.errors import ProgramError, Refusal

_ANSWERS_END_WITHIN = 1.0  # seconds, at the end of it all


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All that the daemon is told: its sources, the kubelet's directories, where it keeps what has to outlive it, its
    own pod (`namespace/name`) if it is told, and the ports of metrics and health, None for none. `beside` is another
    server on the same watch, or None."""

    sources: Sources
    kubelet_dir: Path
    plugins_registry: Path | None
    state: Path
    own_pod: str | None
    metrics: HTTPPort | None
    health: HTTPPort | None
    beside: Callable[[Watch, Counters, Partitions], Coroutine[Any, Any, None]] | None = None


async def run(world: World) -> None:
    """Serve until SIGTERM or SIGINT. ProgramError if something is wrong from the start."""
    directory = kubelet_directory(world.kubelet_dir, "device plugin directory", "--kubelet-dir")
    registry = None
    if world.plugins_registry is not None:
        registry = kubelet_directory(world.plugins_registry, "plugins_registry", "--plugins-registry")
    kubelet, counters, ending = Kubelet(directory, registry), Counters(), asyncio.Event()
    failures: list[ProgramError] = []
    hear(ending.set, *STOPS)
    with listening(world.sources, ending) as bells:
        hear(bells.config.ring, signal.SIGHUP)

        def moved() -> None:
            kubelet.moved()
            bells.kubelet.ring()  # the kubelet writes its checkpoint there at every allocation

        with contextlib.closing(Directories([directory, kubelet.sockets], moved)):
            watch = await _begun(world.sources, ending)
            if watch is not None:
                pods, partitions = Pods(watch), _partitions(world, watch)
                async with monitoring(watch, counters, metrics=world.metrics, health=world.health):
                    await pods.ask(WORTH_WAITING)
                    async with (
                        keeping(watch, pods, bells, counters),
                        reconciling(partitions),
                        asyncio.TaskGroup() as servers,
                    ):
                        if world.beside is not None:
                            servers.create_task(_until(ending, world.beside(watch, counters, partitions), failures))
                        servers.create_task(serve(watch, kubelet, counters, partitions))
    # A server of grpc may end before the tasks that answer for it; each that is cancelled has grpc print a traceback.
    if answering := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(answering, timeout=_ANSWERS_END_WITHIN)
    if failures:
        raise failures[0]
    if world.sources.reader.is_lost:
        raise Refusal("the process that reads sysfs", "was killed", "see whether the container is short of memory")


def _partitions(world: World, watch: Watch) -> Partitions:
    sources = world.sources
    return Partitions(
        state=world.state,
        settings=lambda: watch.snapshot.config.fabric,
        inventory=lambda: watch.snapshot.inventory,
        listed=lambda: list_pods(sources.pod_resources, WORTH_WAITING),
        own_pod=world.own_pod,
        every=min(sources.rescan, RECONCILED_EVERY),
        tell=watch.hear_partitions,
    )


async def _until(ending: asyncio.Event, server: Coroutine[Any, Any, None], failures: list[ProgramError]) -> None:
    """Run the server; if it cannot go on, that is the end of the daemon."""
    try:
        await server
    except ProgramError as error:
        failures.append(error)
        ending.set()


async def _begun(sources: Sources, ending: asyncio.Event) -> Watch | None:
    """Return a watch with its first snapshot, which takes long where the kernel does not answer; None if it is to end
    before that. ProgramError if the config or the node cannot be read."""
    begin, end = asyncio.create_task(Watch.begin(sources, ending)), asyncio.create_task(ending.wait())
    await asyncio.wait([begin, end], return_when=asyncio.FIRST_COMPLETED)
    end.cancel()
    if begin.done():
        return begin.result()
    begin.cancel()
    await asyncio.wait([begin])
    return None
