"""`gpu-plugin serve`: the sources of changes, the watch over the node, and the servers, in one event loop."""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from plugin.device_plugin.kubelet import serve
from plugin.device_plugin.monitoring import monitoring
from plugin.fabric.ownership import RECONCILED_EVERY, Partitions, reconciling
from plugin.watch.events import directories
from plugin.watch.keeper import keeping
from plugin.watch.listeners import listening
from plugin.watch.podresources import WORTH_WAITING, Pods, list_pods
from plugin.watch.sockets import Kubelet
from plugin.watch.watch import Sources, Watch
from program.bootstrap import STOPS, hear
from program.errors import ProgramError, Refusal
from program.ports import HTTPPort

#: A server beside the device plugin: it ends when the watch is stopped, and its ProgramError ends the daemon.
Server: TypeAlias = Callable[[Watch, Partitions], Coroutine[Any, Any, None]]

_ANSWERS_END_WITHIN = 1.0  # seconds, when the daemon ends


async def run(
    sources: Sources,
    *,
    kubelet_dir: Path,
    plugins_registry: Path | None,
    own_pod: str | None,
    metrics: HTTPPort | None,
    health: HTTPPort | None,
    beside: Iterable[Server],
) -> None:
    """Serve until SIGTERM or SIGINT. ProgramError if something is wrong from the start.

    `own_pod` is this plugin's pod (`namespace/name`), None if unknown; a port is None if it is not served. `beside` are
    further servers on the watch.
    """
    kubelet, ending = Kubelet(kubelet_dir, plugins_registry), asyncio.Event()
    failures: list[ProgramError] = []
    hear(ending.set, *STOPS)
    with listening(sources, ending) as bells:
        hear(bells.config.ring, signal.SIGHUP)

        def moved() -> None:
            kubelet.moved()
            bells.kubelet.ring()  # the kubelet writes its checkpoint there at every allocation

        with directories([kubelet.directory, kubelet.sockets], moved):
            watch = await _begun(sources, ending)
            if watch is not None:
                pods, partitions = Pods(watch), _partitions(watch, own_pod)
                async with monitoring(watch, metrics=metrics, health=health):
                    await pods.ask(WORTH_WAITING)
                    async with (
                        keeping(watch, pods, bells),
                        reconciling(partitions),
                        asyncio.TaskGroup() as servers,
                    ):
                        for server in beside:
                            servers.create_task(_until(ending, server(watch, partitions), failures))
                        servers.create_task(serve(watch, kubelet, partitions))
    # A server of grpc may end before its tasks have answered, and grpc prints a traceback for each that is cancelled.
    if answering := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(answering, timeout=_ANSWERS_END_WITHIN)
    if failures:
        raise failures[0]
    if sources.reader.is_lost:
        raise Refusal("the process that reads sysfs", "was killed", "see whether the container is short of memory")


def _partitions(watch: Watch, own_pod: str | None) -> Partitions:
    sources = watch.sources
    return Partitions(
        state=sources.state,
        settings=lambda: watch.snapshot.fabric,
        inventory=lambda: watch.snapshot.inventory,
        listed=lambda: list_pods(sources.pod_resources, WORTH_WAITING),
        own_pod=own_pod,
        every=min(sources.rescan, RECONCILED_EVERY),
        tell=lambda sight, unlinked: watch.see(replace(watch.snapshot, partitions=sight, unlinked=unlinked)),
    )


async def _until(ending: asyncio.Event, server: Coroutine[Any, Any, None], failures: list[ProgramError]) -> None:
    """Run the server; if it fails, end the daemon."""
    try:
        await server
    except ProgramError as error:
        failures.append(error)
        ending.set()


async def _begun(sources: Sources, ending: asyncio.Event) -> Watch | None:
    """Return a watch with its first snapshot, or None if the daemon is stopped first: the kernel may be slow to answer.
    ProgramError if the config or the node cannot be read."""
    begin, end = asyncio.create_task(Watch.begin(sources, ending)), asyncio.create_task(ending.wait())
    await asyncio.wait([begin, end], return_when=asyncio.FIRST_COMPLETED)
    end.cancel()
    if begin.done():
        return begin.result()
    begin.cancel()
    await asyncio.wait([begin])
    return None
