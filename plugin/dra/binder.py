"""A claim's cards from their host's drivers to vfio, and back: as `gpu-plugin bind` and `unbind` do it for anybody.

Each is done in a process of its own, which may wait for a driver as long as that wants. It is not ended for being late:
it has the lock of all binders, remembers what it does, and the next one says who is at work.
"""

import asyncio
import logging
import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from pci.address import PCIAddress
from plugin.binding.plan import named_cards, plan_bind, plan_unbind
from plugin.binding.rebind import Decide, Roots, rebind
from program.child import spawned
from program.errors import Refusal

_log = logging.getLogger(__name__)

#: The kubelet waits 45 s (defaultClientCallTimeout in pkg/kubelet/cm/dra/plugin), and the rest takes some of it.
_AT_MOST = 25.0  # seconds
_FILES_FOR_ALL_TO_READ = 0o022  # what a command by hand has; the daemon's own is for its sockets


class StillAtWork(Refusal):
    """The process has not ended in time, and goes on."""


class Binder:
    """Binds and unbinds cards of the node whose /sys is `sysfs`; former drivers are kept in `state`. Lives in one event
    loop."""

    def __init__(self, sysfs: Path, state: Path, *, at_most: float = _AT_MOST) -> None:
        self._roots = Roots.beside(sysfs, state)
        self._at_most = at_most
        self._running: set[asyncio.Task[frozenset[str]]] = set()

    async def bind(self, addresses: Iterable[str]) -> frozenset[str]:
        """Give the cards of these functions to vfio, all or none; return which functions it had not before. Refusal if
        they cannot be bound, StillAtWork if that is not known yet."""
        return await self._run("bind", plan_bind, addresses)

    async def unbind(self, addresses: Iterable[str]) -> None:
        """Give the cards of these functions back to the drivers that they had. Refusal and StillAtWork as above."""
        await self._run("unbind", plan_unbind, addresses)

    async def _run(self, verb: str, decide: Decide, addresses: Iterable[str]) -> frozenset[str]:
        deadline = asyncio.get_running_loop().time() + self._at_most
        # One that an earlier question did not wait for.
        for earlier in tuple(self._running):
            await self._wait(earlier, deadline)
        functions = sorted(map(PCIAddress.parse, addresses))
        command = f"gpu-plugin {verb} {' '.join(map(str, functions))}"
        try:
            child = spawned(command, partial(_rebound, self._roots, functions, decide), goes_on=True)
        except OSError as error:
            fix = "see whether the container may have more processes"
            raise Refusal(command, f"cannot be started: {error.strerror}", fix) from error
        task = asyncio.create_task(child.answered(), name=command)
        # It goes on when whoever waits does not wait any more.
        self._running.add(task)
        task.add_done_callback(self._ended)
        await self._wait(task, deadline)
        return task.result()

    async def _wait(self, task: asyncio.Task[frozenset[str]], deadline: float) -> None:
        await asyncio.wait({task}, timeout=deadline - asyncio.get_running_loop().time())
        if not task.done():
            raise StillAtWork(
                task.get_name(),
                f"has not ended within {self._at_most:g} s: a driver does not let go, or does not start",
                "it goes on, and is asked again; the kernel's log (dmesg) may say what it waits for",
            )

    def _ended(self, task: asyncio.Task[frozenset[str]]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("%s", error)


def _rebound(roots: Roots, functions: Sequence[PCIAddress], decide: Decide) -> frozenset[str]:
    """In the child: have these cards bound as decided; return which functions have another driver now."""
    os.umask(_FILES_FOR_ALL_TO_READ)
    plan = rebind(roots, lambda host: named_cards(host, functions), decide)
    return frozenset(str(move.address) for move in plan.moves)
