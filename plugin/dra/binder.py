"""Binds a claim's cards to vfio and gives them back to their drivers, as `gpu-plugin bind` and `unbind` do; makes and
removes its vGPUs.

Each call has its own process, which may wait for a driver without end. It is not killed for being late: it holds the
lock of all binders and records its changes, and the next binder says that it is at work.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pci.address import PCIAddress
from plugin.cards.config import Config
from plugin.changes.engine import Roots
from plugin.changes.users import AskUsers, Name
from plugin.dra.tasks import StillAtWork
from plugin.kinds.card import Decide, named_cards, plan_bind, plan_unbind, rebind
from plugin.kinds.vgpus import make_for_claim, named, remove_for_claims
from plugin.watch.watch import Durations
from program.child import spawned
from program.errors import Refusal

_log = logging.getLogger(__name__)

_AT_MOST = 25.0  # seconds: less than the kubelet waits, since other steps take time too
_FILES_FOR_ALL_TO_READ = 0o022  # the umask of a manual command; the daemon's own is for its sockets

T = TypeVar("T")


class Binder:
    """Binds and unbinds cards of the node whose /sys is `sysfs`, and makes and removes vGPUs; the journal is in
    `state`. Lives in one event loop, and takes one call at a time. `durations` gets the time of each call, by verb and
    outcome. Each call looks for users: `others` returns all users beside the claim."""

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
        self._latest: asyncio.Task[Any] | None = None

    async def bind(self, addresses: Iterable[str], config: Config, others: AskUsers) -> frozenset[str]:
        """Give the cards of these functions to vfio, all or none, as the config wants them; return the functions that
        vfio did not have before. Refusal if they cannot be bound, StillAtWork if that is not known yet."""
        functions = sorted(map(PCIAddress.parse, addresses))
        return await self._run(
            "bind", functions, partial(_rebind, self._roots, functions, partial(plan_bind, config=config), others)
        )

    async def unbind(self, addresses: Iterable[str], others: AskUsers) -> None:
        """Give the cards of these functions back to their former drivers; Refusal and StillAtWork as in `bind`."""
        functions = sorted(map(PCIAddress.parse, addresses))
        await self._run("unbind", functions, partial(_rebind, self._roots, functions, plan_unbind, others))

    async def make_vgpu(self, name: str, card: str, kind: str, config: Config, others: AskUsers) -> None:
        """Make a vGPU of the type `kind` of a card: `name` is its virtual function's address, or the UUID of the
        mediated device. NotMade if the card does not make it, Refusal and StillAtWork as in `bind`."""
        work = partial(_make, self._roots, config, named(name), PCIAddress.parse(card), kind, others)
        await self._run("make", [name], work)

    async def remove_vgpus(self, names: Iterable[str], config: Config, others: AskUsers) -> None:
        """Remove these mediated devices (UUIDs) and the vGPUs of these virtual functions (addresses); Refusal and
        StillAtWork as in `bind`."""
        vgpus = sorted(names)
        await self._run("remove", vgpus, partial(_remove, self._roots, config, [*map(named, vgpus)], others))

    async def _run(self, verb: str, functions: Sequence[object], work: Callable[[], T]) -> T:
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._at_most
        if self._latest is not None:
            await self._wait(self._latest, deadline)  # an earlier call may not have waited for its end
        began = clock()
        command = f"gpu-plugin {verb} {' '.join(map(str, functions))}"
        try:
            child = spawned(command, work, goes_on=True)
        except OSError as error:
            fix = "see whether the container may have more processes"
            raise Refusal(command, f"cannot be started: {error.strerror}", fix) from error
        # The task goes on even if the caller stops waiting.
        task = self._latest = asyncio.create_task(child.answer_async(), name=command)
        task.add_done_callback(lambda task: self._note(verb, clock() - began, task))
        await self._wait(task, deadline)
        answer: T = task.result()
        return answer

    def _note(self, verb: str, seconds: float, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        self._durations[verb, "done" if error is None else "failed"].add(seconds)
        if error is not None:
            _log.warning("%s", error)

    async def _wait(self, task: asyncio.Task[Any], deadline: float) -> None:
        await asyncio.wait({task}, timeout=deadline - asyncio.get_running_loop().time())
        if not task.done():
            raise StillAtWork(
                task.get_name(),
                f"has not ended within {self._at_most:g} s: a driver does not let go, or does not start",
                "it goes on, and is asked again; the kernel's log (dmesg) may say what it waits for",
            )


def _make(roots: Roots, config: Config, vgpu: Name, card: PCIAddress, kind: str, others: AskUsers) -> None:
    os.umask(_FILES_FOR_ALL_TO_READ)
    make_for_claim(roots, config, vgpu, card, kind, others)


def _remove(roots: Roots, config: Config, vgpus: Sequence[Name], others: AskUsers) -> None:
    os.umask(_FILES_FOR_ALL_TO_READ)
    remove_for_claims(roots, config, vgpus, others)


def _rebind(roots: Roots, functions: Sequence[PCIAddress], decide: Decide, others: AskUsers) -> frozenset[str]:
    """In the child: rebind these functions' cards as decided; return the functions that have another driver now."""
    os.umask(_FILES_FOR_ALL_TO_READ)
    plan = rebind(roots, lambda host: named_cards(host, functions), decide, others)
    return frozenset(str(move.address) for move in plan.moves)
