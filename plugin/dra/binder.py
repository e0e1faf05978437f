"""A claim's cards from their host's drivers to vfio, and back: by `gpu-plugin bind` and `unbind`, as anybody does it.

Each is a process of its own, which may wait for a driver as long as that wants. It is not ended for being late: it has
the lock of all binders, remembers what it does, and the next one says who is at work.
"""

import asyncio
import logging
import sys
from collections.abc import Iterable
from pathlib import Path

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
        self._flags = ("--sysfs", str(sysfs), "--state", str(state))
        self._at_most = at_most
        self._running: set[asyncio.Task[str]] = set()

    async def bind(self, addresses: Iterable[str]) -> frozenset[str]:
        """Give the cards of these functions to vfio, all or none; return which functions it had not before. Refusal if
        they cannot be bound, StillAtWork if that is not known yet."""
        lines = await self._run("bind", addresses)
        return frozenset(line.partition(": ")[0] for line in lines.splitlines())

    async def unbind(self, addresses: Iterable[str]) -> None:
        """Give the cards of these functions back to the drivers that they had. Refusal and StillAtWork as above."""
        await self._run("unbind", addresses)

    async def _run(self, verb: str, addresses: Iterable[str]) -> str:
        deadline = asyncio.get_running_loop().time() + self._at_most
        # One that an earlier question did not wait for.
        for earlier in tuple(self._running):
            await self._wait(earlier, deadline)
        addresses = sorted(addresses)
        task = asyncio.create_task(self._output(verb, addresses), name=_command(verb, addresses))
        # It goes on when whoever waits does not wait any more.
        self._running.add(task)
        task.add_done_callback(self._ended)
        await self._wait(task, deadline)
        return task.result()

    async def _wait(self, task: asyncio.Task[str], deadline: float) -> None:
        await asyncio.wait({task}, timeout=deadline - asyncio.get_running_loop().time())
        if not task.done():
            raise StillAtWork(
                task.get_name(),
                f"has not ended within {self._at_most:g} s: a driver does not let go, or does not start",
                "it goes on, and is asked again; the kernel's log (dmesg) may say what it waits for",
            )

    async def _output(self, verb: str, addresses: list[str]) -> str:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-m", "plugin", verb, *addresses, *self._flags),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            umask=_FILES_FOR_ALL_TO_READ,
        )
        output, errors = await process.communicate()
        if process.returncode != 0:
            # Each line has a fix of its own.
            start = "gpu-plugin: ", f"cannot {verb} {addresses[0]}: "
            lines = [line.removeprefix(start[0]).removeprefix(start[1]) for line in errors.decode().splitlines()]
            wrong = ", and ".join(lines) or f"was ended (exit code {process.returncode})"
            raise Refusal(_command(verb, addresses), wrong, "it is tried again when the kubelet asks again")
        return output.decode()

    def _ended(self, task: asyncio.Task[str]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("%s", error)


def _command(verb: str, addresses: Iterable[str]) -> str:
    return f"gpu-plugin {verb} {' '.join(addresses)}"
