"""Threads in which libvirt or sysfs is asked: they may answer late or never, and the event loop waits for nobody."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from grpclib.const import Status
from grpclib.exceptions import GRPCError

_T = TypeVar("_T")

_THREADS = 4  # at once; libvirt does one thing with a domain after the other anyway
_PATIENCE = 10.0  # seconds for an answer, a free thread included; `ctl` waits longer, and so hears of it


class Threads:
    """A thread for each question while it is asked, a few at most; whoever comes then waits for one.

    The threads are daemons: one that is never answered does not keep the process from ending. `asked` is who is asked;
    `late` is what a caller hears besides, who has waited too long.
    """

    def __init__(self, asked: str, late: str) -> None:
        self._asked, self._late = asked, late
        self._free = asyncio.Semaphore(_THREADS)

    async def run(self, ask: Callable[[], _T]) -> _T:
        """What `ask` returns or raises. GRPCError where it takes too long, and where there can be no thread.

        The thread of a caller who waits no longer stays taken until `ask` returns.
        """
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._free.acquire()
                return await asyncio.wrap_future(self._started(ask))
        except TimeoutError as error:
            raise GRPCError(
                Status.DEADLINE_EXCEEDED,
                f"{self._asked} has not answered in {_PATIENCE:.0f} s{self._late}",
            ) from error

    def _started(self, ask: Callable[[], _T]) -> Future[_T]:
        loop = asyncio.get_running_loop()
        answer = Future[_T]()
        answer.set_running_or_notify_cancel()

        def run() -> None:
            try:
                answer.set_result(ask())
            except BaseException as error:
                answer.set_exception(error)
            finally:
                with suppress(RuntimeError):  # the loop has ended meanwhile
                    loop.call_soon_threadsafe(self._free.release)

        try:
            threading.Thread(target=run, name=self._asked, daemon=True).start()
        except RuntimeError as error:
            self._free.release()
            raise GRPCError(Status.RESOURCE_EXHAUSTED, f"the launcher has no thread for that: {error}") from error
        return answer
