"""Binds a claim's cards to vfio and gives them back to their drivers, as `gpu-plugin bind` and `unbind` do.

Each call has a process of its own, which may wait for a driver without end. It is not killed for being late: it has the
lock of all binders and remembers what it does, and the next binder says that it is at work.
"""

import asyncio
import logging
import os
from collections.abc import Iterable, MutableMapping, Sequence
from functools import partial
from pathlib import Path

from pci.address import PCIAddress
from plugin.binding.plan import named_cards, plan_bind, plan_unbind
from plugin.binding.rebind import Decide, Roots, rebind
from plugin.cards.config import Config
from plugin.dra.work import StillAtWork
from plugin.watch.watch import Durations
from program.child import spawned
from program.errors import Refusal

_log = logging.getLogger(__name__)

_AT_MOST = 25.0  # seconds: the rest takes some of those that the kubelet waits
_FILES_FOR_ALL_TO_READ = 0o022  # what a command by hand has; the daemon's own is for its sockets


class Binder:
    """Binds and unbinds cards of the node whose /sys is `sysfs`; former drivers are kept in `state`. Lives in one event
    loop, and takes one call at a time. `durations` gets how long each call took, by verb and outcome."""

    def __init__(
        self,
        sysfs: Path,
        state: Path,
        durations: MutableMapping[tuple[str, str], Durations],
        *,
        at_most: float = _AT_MOST,
    ) -> None:
        self._roots = Roots.beside(sysfs, state)
        self._durations = durations
        self._at_most = at_most
        self._latest: asyncio.Task[frozenset[str]] | None = None

    async def bind(self, addresses: Iterable[str], config: Config) -> frozenset[str]:
        """Give the cards of these functions to vfio, all or none, as the config wants them; return the functions that
        it did not have before. Refusal if they cannot be bound, StillAtWork if that is not known yet."""
        return await self._run("bind", partial(plan_bind, config=config), addresses)

    async def unbind(self, addresses: Iterable[str]) -> None:
        """Give the cards of these functions back to their former drivers; Refusal and StillAtWork as for bind."""
        await self._run("unbind", plan_unbind, addresses)

    async def _run(self, verb: str, decide: Decide, addresses: Iterable[str]) -> frozenset[str]:
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._at_most
        if self._latest is not None:
            await self._wait(self._latest, deadline)  # an earlier call may not have waited for its end
        began, functions = clock(), sorted(map(PCIAddress.parse, addresses))
        command = f"gpu-plugin {verb} {' '.join(map(str, functions))}"
        try:
            child = spawned(command, partial(_rebound, self._roots, functions, decide), goes_on=True)
        except OSError as error:
            fix = "see whether the container may have more processes"
            raise Refusal(command, f"cannot be started: {error.strerror}", fix) from error
        # The task goes on if the caller does not wait any more.
        task = self._latest = asyncio.create_task(child.answered(), name=command)
        task.add_done_callback(lambda task: self._note(verb, clock() - began, task))
        await self._wait(task, deadline)
        return task.result()

    def _note(self, verb: str, seconds: float, task: asyncio.Task[frozenset[str]]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        self._durations[verb, "done" if error is None else "failed"].add(seconds)
        if error is not None:
            _log.warning("%s", error)

    async def _wait(self, task: asyncio.Task[frozenset[str]], deadline: float) -> None:
        await asyncio.wait({task}, timeout=deadline - asyncio.get_running_loop().time())
        if not task.done():
            raise StillAtWork(
                task.get_name(),
                f"has not ended within {self._at_most:g} s: a driver does not let go, or does not start",
                "it goes on, and is asked again; the kernel's log (dmesg) may say what it waits for",
            )


def _rebound(roots: Roots, functions: Sequence[PCIAddress], decide: Decide) -> frozenset[str]:
    """In the child: have these cards bound as decided; return which functions have another driver now."""
    os.umask(_FILES_FOR_ALL_TO_READ)
    plan = rebind(roots, lambda host: named_cards(host, functions), decide)
    return frozenset(str(move.address) for move in plan.moves)
