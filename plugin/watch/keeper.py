"""Keeps a watch over the node: looks when a change was told, and from time to time for what nobody told."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator

from plugin.watch.bus import look_for_fallen
from plugin.watch.counters import Counters
from plugin.watch.listeners import Bells
from plugin.watch.podresources import WORTH_WAITING, Pods
from plugin.watch.watch import Watch
from program.errors import ProgramError
from program.trouble import Trouble

_log = logging.getLogger(__name__)

#: The kubelet lists a pod a moment after it allocated for it, and a pod that ended without telling anybody. Seconds.
_PODS_APPEAR_WITHIN = 2.0
_QUESTIONS_APART = 0.1  # seconds; every list and every allocation is a reason to ask


@contextlib.asynccontextmanager
async def keeping(watch: Watch, pods: Pods, bells: Bells, counters: Counters) -> AsyncIterator[None]:
    """Keep the watch until the block ends."""
    due, looks = asyncio.Event(), _Looks(watch)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(task)
            for task in (
                _end(watch),
                _look_at_sysfs(looks, bells),
                _look_at_nodes(looks, bells),
                _look_from_time_to_time(looks, watch, pods, counters),
                _reload(watch, pods, bells),
                _find_due(due, bells),
                _ask_when(due, pods),
            )
        ]
        yield
        for task in tasks:
            task.cancel()


class _Looks:
    """Looks at the node. Where that fails, the last snapshot stands; the log says so once for each reason, and says
    when it is over."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._trouble = Trouble(
            _log, logging.ERROR, "the node's inventory stays as it was", "the node can be looked at again"
        )

    async def at_everything(self, *, uses: bool = False) -> None:
        with self._reporting():
            await self._watch.look_again(uses=uses)
            self._trouble.tell(None)

    def at_nodes(self) -> None:
        with self._reporting():
            self._watch.look_at_nodes()

    async def for_fallen(self, pods: Pods, counters: Counters) -> None:
        with self._reporting():
            await look_for_fallen(self._watch, pods, counters)

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except ProgramError as error:
            self._trouble.tell(error)
        except Exception:
            # A defect of ours must not end what is served.
            _log.exception("the node's inventory stays as it was")


async def _end(watch: Watch) -> None:
    await watch.ending.wait()
    watch.wake()


async def _look_at_sysfs(looks: _Looks, bells: Bells) -> None:
    while True:
        await bells.sysfs.rung()
        await looks.at_everything()


async def _look_at_nodes(looks: _Looks, bells: Bells) -> None:
    while True:
        await bells.nodes.rung()
        looks.at_nodes()


async def _look_from_time_to_time(looks: _Looks, watch: Watch, pods: Pods, counters: Counters) -> None:
    """Look at everything at intervals, for what neither the kernel nor the kubelet told; also at what the kernel was
    silent about."""
    while True:
        await asyncio.sleep(watch.sources.rescan)
        await watch.sources.reader.forget_silence()
        await looks.at_everything(uses=True)
        await looks.for_fallen(pods, counters)


async def _reload(watch: Watch, pods: Pods, bells: Bells) -> None:
    while True:
        await bells.config.rung()
        try:
            config = await watch.sources.read_config()
            if config != watch.snapshot.config:
                # Under another name a device is another one to the kubelet, whoever has it.
                await pods.ask(WORTH_WAITING)
                await watch.reconfigure(config)
                _log.info("the config has changed and is in force")
        except ProgramError as error:
            _log.error("the config stays as it was: %s", error)
        except Exception:
            # Whatever is wrong with a new file, the old one is in force.
            _log.exception("the config stays as it was")


async def _find_due(due: asyncio.Event, bells: Bells) -> None:
    """Make a question to the kubelet due when it has moved, and again when it has listed what it has done."""
    while True:
        await bells.kubelet.rung()
        due.set()
        asyncio.get_running_loop().call_later(_PODS_APPEAR_WITHIN, due.set)


async def _ask_when(due: asyncio.Event, pods: Pods) -> None:
    while True:
        await due.wait()
        due.clear()
        await pods.ask()
        await asyncio.sleep(_QUESTIONS_APART)
