"""Keeps a watch over the node: looks at each event, and from time to time for changes without an event."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

from pci.address import PCIAddress
from pci.sysfs.pcie import read_errors_of_all
from plugin.node.error_counts import ErrorCounts
from plugin.node.look import fallen_off_the_bus
from plugin.watch.events import Bell
from plugin.watch.listeners import Bells
from plugin.watch.podresources import WORTH_WAITING, Pods
from plugin.watch.watch import Watch
from program.errors import ProgramError
from program.trouble import Trouble

_log = logging.getLogger(__name__)

#: The kubelet lists a pod a moment after it allocated for it, and a pod that ended without telling anybody. Seconds.
_PODS_APPEAR_WITHIN = 2.0
_QUESTIONS_APART = 0.1  # seconds; every list and every allocation is a reason to ask

_STAYS = "the node's inventory stays as it was"


@contextlib.asynccontextmanager
async def keeping(watch: Watch, pods: Pods, bells: Bells) -> AsyncIterator[None]:
    """Keep the watch until the block ends."""
    due, trouble = Bell(), Trouble(_log, logging.ERROR, _STAYS, "the node can be looked at again")
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(task)
            for task in (
                _end(watch),
                _look_at_sysfs(watch, bells, trouble),
                _look_at_nodes(watch, bells, trouble),
                _look_from_time_to_time(watch, pods, trouble),
                _reload(watch, pods, bells),
                _find_due(due, bells),
                _ask_when(due, pods),
            )
        ]
        yield
        for task in tasks:
            task.cancel()


@contextlib.contextmanager
def _reported(trouble: Trouble) -> Iterator[None]:
    """Keep the last snapshot if a look fails, and log each reason once."""
    try:
        yield
    except ProgramError as error:
        trouble.tell(error)
    except Exception:
        # A defect of ours must not end what is served.
        _log.exception(_STAYS)


async def _end(watch: Watch) -> None:
    await watch.ending.wait()
    watch.wake()


async def _look_at_sysfs(watch: Watch, bells: Bells, trouble: Trouble) -> None:
    while True:
        await bells.sysfs.rung()
        with _reported(trouble):
            await watch.look_again()
            trouble.tell(None)


async def _look_at_nodes(watch: Watch, bells: Bells, trouble: Trouble) -> None:
    while True:
        await bells.nodes.rung()
        with _reported(trouble):
            watch.look_at_nodes()


async def _look_from_time_to_time(watch: Watch, pods: Pods, trouble: Trouble) -> None:
    """Look at everything at intervals, for changes without an event; also at files for which the kernel was silent."""
    with _reported(trouble):
        await _count_errors(watch)
    while True:
        await asyncio.sleep(watch.sources.rescan)
        await watch.sources.reader.forget_silence()
        with _reported(trouble):
            await watch.look_again(uses=True)
            trouble.tell(None)
        with _reported(trouble):
            await _look_for_fallen(watch, pods)
        with _reported(trouble):
            await _count_errors(watch)


async def _look_for_fallen(watch: Watch, pods: Pods) -> None:
    """Tell the watch which functions fell off the bus. Nothing is read without the kubelet's list of used devices."""

    async def idle() -> tuple[PCIAddress, ...] | None:
        allocations = watch.counters.allocations.copy()
        # A container that was given a device meanwhile may be missing in the list.
        is_known = await pods.ask() and watch.counters.allocations == allocations
        return watch.snapshot.idle if is_known else None

    fallen = await fallen_off_the_bus(watch.sources.reader.ask, watch.sources.sys, idle)
    if fallen is not None:  # else the last answer stands
        watch.see(replace(watch.snapshot, fallen=fallen))


async def _count_errors(watch: Watch) -> None:
    """Tell the watch the PCIe errors of devices on offer, also of devices in guests: the kernel has counted them, and
    reading its counts asks no device."""
    addresses = [function.address for device in watch.snapshot.inventory.offered for function in device.functions]
    counted = await watch.sources.reader.ask(read_errors_of_all, watch.sources.sys, addresses)
    watch.see(replace(watch.snapshot, errors=(watch.snapshot.errors or ErrorCounts()).then(counted)))


async def _reload(watch: Watch, pods: Pods, bells: Bells) -> None:
    while True:
        await bells.config.rung()
        try:
            config = await watch.sources.read_config()
            if config != watch.snapshot.config:
                # The kubelet takes a device under another name for another device, which a pod may have already.
                await pods.ask(WORTH_WAITING)
                await watch.look_again(config, uses=True)
                _log.info("the config has changed and is in force")
        except ProgramError as error:
            _log.error("the config stays as it was: %s", error)
        except Exception:
            # A new file may hold anything; the old config stays in force.
            _log.exception("the config stays as it was")


async def _find_due(due: Bell, bells: Bells) -> None:
    """Ring `due` when the kubelet's directory changes, and again when the kubelet's list shows the change."""
    while True:
        await bells.kubelet.rung()
        due.ring()
        asyncio.get_running_loop().call_later(_PODS_APPEAR_WITHIN, due.ring)


async def _ask_when(due: Bell, pods: Pods) -> None:
    while True:
        await due.rung()
        await pods.ask()
        await asyncio.sleep(_QUESTIONS_APART)
