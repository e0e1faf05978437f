"""A VM's changes, handed from the threads that make them to readers in the event loop."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from launcher.runtime.vm import VM, Change, Phase

_UNREAD = 256  # changes; a reader that is slower loses the oldest


async def changes_of(vm: VM) -> AsyncGenerator[tuple[Change, int]]:
    """Yield each change, with how many were lost just before it; the first has the present phase, the last one ENDED.
    The VM keeps changes for this reader until the generator is closed (contextlib.aclosing).
    """
    loop = asyncio.get_running_loop()
    unread: deque[Change] = deque()
    news = asyncio.Event()
    lost = 0

    def add(change: Change) -> None:
        nonlocal lost
        if len(unread) == _UNREAD:
            unread.popleft()
            lost += 1
        unread.append(change)
        news.set()

    with vm.telling(lambda change: loop.call_soon_threadsafe(add, change)):
        while True:
            await news.wait()
            news.clear()
            while unread:
                change = unread.popleft()
                before, lost = lost, 0
                yield change, before
                if change.phase is Phase.ENDED:
                    return
