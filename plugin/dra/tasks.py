"""Tasks that take longer than the kubelet waits: the kubelet gets an answer in time, and the task goes on."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from program.errors import Refusal

T = TypeVar("T")

#: Seconds. The kubelet waits 45 s (defaultClientCallTimeout in pkg/kubelet/cm/dra/plugin), and asks again 10 to 15 s
#: after an error.
_ANSWERED_WITHIN = 40.0


class StillAtWork(Refusal):
    """The requested work is not done yet, and goes on."""


class ClaimTasks:
    """The tasks in progress, by a verb (`prepared`) and a UID; a second request for a task joins the first. Lives in
    one event loop."""

    def __init__(self, *, within: float = _ANSWERED_WITHIN) -> None:
        self._within = within
        self._tasks: dict[tuple[str, str], asyncio.Task[Any]] = {}

    async def run(self, verb: str, uid: str, subject: str, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Begin the task unless it is in progress, and return its result. StillAtWork if it takes too long, Refusal if
        it is stopped."""
        task: asyncio.Task[T] | None = self._tasks.get((verb, uid))
        if task is None:
            task = self._tasks[verb, uid] = asyncio.create_task(begin())
            task.add_done_callback(lambda ended: self._forget((verb, uid), ended))
        # The waiting call may be cancelled, but not the work.
        await asyncio.wait({task}, timeout=self._within)
        if not task.done():
            wrong = f"is not {verb} within {self._within:g} s: an earlier claim, a driver or the API server takes long"
            raise StillAtWork(subject, wrong, "it goes on, and is asked for again")
        if task.cancelled():
            raise Refusal(subject, f"is not to be {verb} any more", "see the log")
        return task.result()

    async def stop(self, verb: str, uid: str) -> None:
        """Cancel the task, if it is in progress."""
        if (task := self._tasks.get((verb, uid))) is not None:
            task.cancel()
            await asyncio.wait({task})

    def _forget(self, key: tuple[str, str], ended: asyncio.Task[Any]) -> None:
        del self._tasks[key]
        if not ended.cancelled():
            ended.exception()  # the caller has the exception, or asks again
