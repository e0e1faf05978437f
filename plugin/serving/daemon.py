"""`gpu-plugin serve`: the watch over the node, what tells it to look, and the kubelet, in one event loop."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pci.address import PCIAddress
from pci.sysfs.bus import is_off_the_bus
from plugin.config import Config
from plugin.errors import PluginError
from plugin.nodes import CDEVS, VFIO
from plugin.serving import podresources
from plugin.serving.events import Directories, Gathered, Uevents
from plugin.serving.kubelet import Kubelet, Registrations, kubelet_directory, serve
from plugin.serving.monitoring import monitoring
from plugin.serving.watch import Look, Watch, look_again_or_say_why

_log = logging.getLogger(__name__)

#: The kubelet lists a pod a moment after it allocated for it, and a pod that ended without telling anybody. Seconds.
_PODS_APPEAR_WITHIN = 2.0
_QUESTIONS_APART = 0.1  # seconds; every list and every allocation is a reason to ask
_WORTH_WAITING = 2.0  # seconds for an answer without which a device could be offered that another plugin gave out

_ANSWERS_END_WITHIN = 1.0  # seconds, at the end of it all

#: Between the two reads that a function has to answer with ones. Seconds; a reset takes less.
_RESETS_END_WITHIN = 2.0


@dataclass(frozen=True, kw_only=True)
class World:
    """Where the daemon finds things: the directories that stand for /sys and /dev, the kubelet's, and the config file.

    `look` takes the inventory by a config, `read_config` reads that anew. `rescan` is the seconds between two looks at
    everything, for what no event told. `metrics` and `health` are ports, None for none.
    """

    sys: Path
    dev: Path
    kubelet_dir: Path
    plugins_registry: Path | None
    pod_resources: Path
    config: Path | None
    look: Look
    read_config: Callable[[], Config]
    rescan: float
    metrics: int | None
    health: int | None


async def run(world: World) -> None:
    """Serve until SIGTERM or SIGINT. PluginError for what is wrong from the start."""
    directory = kubelet_directory(world.kubelet_dir, "device plugin directory; name it with --kubelet-dir")
    registry = None
    if world.plugins_registry is not None:
        registry = kubelet_directory(world.plugins_registry, "plugins_registry; name it with --plugins-registry")
    kubelet = Kubelet(directory, registry)
    registrations = Registrations()
    watch: Watch
    pods: _Pods
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        # Whoever tells of changes comes before the first look, so that none is missed between the two. Nothing of this
        # runs before the next await, when there is a watch.
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, lambda: watch.stop())
        reload = asyncio.Event()
        reloading = Gathered(reload.set)
        loop.add_signal_handler(signal.SIGHUP, reloading.happened)

        def listen(paths: list[Path], changed: Callable[[], None]) -> None:
            stack.callback(Directories(paths, changed).close)

        listen(
            [world.dev / VFIO, world.dev / CDEVS, world.dev, world.dev / "net"],
            Gathered(lambda: watch.look_at_nodes()).happened,
        )
        # The kubelet writes its checkpoint there at every allocation.
        ask = asyncio.Event()

        def pods_may_differ() -> None:
            ask.set()
            loop.call_later(_PODS_APPEAR_WITHIN, ask.set)

        asking = Gathered(pods_may_differ)

        def kubelet_moved() -> None:
            kubelet.moved()
            asking.happened()

        listen([directory, kubelet.sockets], kubelet_moved)
        if world.config is not None:
            # A changed ConfigMap is another link in the file's directory; an editor may write the file in its place.
            directory_of_config = world.config.absolute().parent
            stack.callback(Directories([directory_of_config], reloading.happened, written=True).close)
        try:
            stack.callback(Uevents(Gathered(lambda: look_again_or_say_why(watch)).happened).close)
        except OSError as error:
            _log.warning("no events from the kernel, changes are seen every %g s: %s", world.rescan, error.strerror)
        watch = Watch(world.look, world.read_config(), sys=world.sys, dev=world.dev)
        pods = _Pods(watch, world.pod_resources)
        await stack.enter_async_context(monitoring(watch, registrations, metrics=world.metrics, health=world.health))
        await pods.ask(_WORTH_WAITING)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_look_from_time_to_time(watch, pods, world.rescan)),
                group.create_task(_reload_when_told(reload, watch, pods, world.read_config)),
                group.create_task(_ask_when_told(ask, pods)),
            ]
            await serve(watch, kubelet, registrations)
            for task in tasks:
                task.cancel()
    # A server of grpc may end before the tasks that answer for it; each that is cancelled has grpc print a traceback.
    if answering := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(answering, timeout=_ANSWERS_END_WITHIN)


async def _reload_when_told(
    told: asyncio.Event, watch: Watch, pods: "_Pods", read_config: Callable[[], Config]
) -> None:
    while True:
        await told.wait()
        told.clear()
        try:
            if read_config() != watch.config:
                # Under another name a device is another one to the kubelet, whoever has it.
                await pods.ask(_WORTH_WAITING)
                watch.reconfigure(read_config())
                _log.info("the config has changed and is in force")
        except PluginError as error:
            _log.error("the config stays as it was: %s", error)
        except Exception:
            # Whatever is wrong with a new file, the old one is in force.
            _log.exception("the config stays as it was")


async def _ask_when_told(told: asyncio.Event, pods: "_Pods") -> None:
    while True:
        await told.wait()
        told.clear()
        await pods.ask()
        await asyncio.sleep(_QUESTIONS_APART)


async def _look_from_time_to_time(watch: Watch, pods: "_Pods", rescan: float) -> None:
    """The net under the kernel's and the kubelet's word."""
    while True:
        await asyncio.sleep(rescan)
        look_again_or_say_why(watch)
        await _look_for_fallen(watch, pods)


async def _look_for_fallen(watch: Watch, pods: "_Pods") -> None:
    """Look for functions that fell off the bus, among the devices that nobody has: two reads that agree, each right
    after the kubelet's word. Where the kubelet does not say who has what, nothing is read."""
    found = await _fallen(watch, pods)
    if found:
        await asyncio.sleep(_RESETS_END_WITHIN)
        again = await _fallen(watch, pods)
        found = None if again is None else found & again
    # What was known stands until something else is.
    if found is not None:
        watch.find_fallen(found)


async def _fallen(watch: Watch, pods: "_Pods") -> frozenset[PCIAddress] | None:
    """The functions of free devices that read as ones; None where it cannot be told which devices are free."""
    allocations = watch.allocations.copy()
    # Whoever was given a device meanwhile may not be on the list.
    if not await pods.ask() or watch.allocations != allocations:
        return None
    free = (
        device
        for devices in watch.snapshot.inventory.listed.values()
        for device in devices
        if device.id not in watch.snapshot.holders
    )
    return frozenset(
        function.address
        for device in free
        for function in device.functions
        if is_off_the_bus(watch.sys, function.address)
    )


class _Pods:
    """Asks the kubelet who has what, and tells the watch."""

    def __init__(self, watch: Watch, socket: Path) -> None:
        self._watch = watch
        self._socket = socket
        self._said: str | None = None

    async def ask(self, at_most: float = 10.0) -> bool:
        """Whether the kubelet said who has what, within so many seconds."""
        try:
            self._watch.hear(await podresources.uses(self._socket, at_most))
        except podresources.CannotAsk as error:
            if str(error) != self._said:
                self._said = str(error)
                _log.warning("what other plugins gave out is not seen: %s", error)
            self._watch.hear_nothing()
            return False
        self._said = None
        return True
