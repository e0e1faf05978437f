"""Threads for questions to libvirt or sysfs, whose answers may come late or never, while the event loop goes on."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from program.errors import Refusal

_T = TypeVar("_T")

_THREADS = 4  # at once; libvirt does one thing with a domain after the other anyway
_PATIENCE = 10.0  # seconds for a free thread and an answer; less than `ctl` waits, so that its user hears why


class Threads:
    """A thread for each open question, at most four; further callers wait for a free one. The threads are daemons, so
    one without an answer does not keep the process from ending. `subject` names who is asked, and `fix` says what to do
    without an answer.
    """

    def __init__(self, subject: str, fix: str) -> None:
        self._subject, self._fix = subject, fix
        self._free = asyncio.Semaphore(_THREADS)

    async def run(self, ask: Callable[[], _T]) -> _T:
        """Return or raise what `ask` does; Refusal if it takes too long, or no thread can be started. The thread stays
        occupied until `ask` returns, even if its caller no longer waits.
        """
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._free.acquire()
                return await asyncio.wrap_future(self._started(ask))
        except TimeoutError as error:
            raise Refusal(self._subject, f"has not answered in {_PATIENCE:.0f} s", self._fix) from error

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
            threading.Thread(target=run, name=self._subject, daemon=True).start()
        except RuntimeError as error:
            self._free.release()
            fix = "expected room for one more in the container's limits of processes and memory"
            raise Refusal(self._subject, f"cannot be asked, for want of a thread: {error}", fix) from error
        return answer
