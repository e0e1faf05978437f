"""The launcher's end of the control socket: one request a connection, within bounds.

A caller that can open the socket may control this VM, and could also kill QEMU: so the bounds are for faulty callers
(docs/decisions/0010-control-socket-and-metrics.md).
"""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any

from launcher.control.faults import shorten
from launcher.control.messages import END, LONGEST_REQUEST, answer_line, problems_line, read_request
from launcher.control.virtual_machine import VMService
from launcher.runtime.vm import VM
from program.errors import ProgramError, Refusal

_log = logging.getLogger(__name__)

_CONNECTIONS = 32  # another one ends the oldest, of those without a request if there are any
_PATIENCE = 5.0  # seconds for a caller to send its request, or to take the one answer
_READ = 1 << 14  # bytes read at once
_AGAIN = 1.0  # seconds until connections are taken again, after none could be
_LAST_WORDS = 1.0  # seconds for callers to hear how it ended


async def serve(listener: socket.socket, end: int, vm: VM) -> None:
    """Serve callers until the eventfd `end` is written to; requests in progress then have one more second."""
    shorten("the control socket", __name__, "asyncio")
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(end, ended.set)
    callers = _Callers(VMService(vm))
    taking = loop.create_task(callers.take(listener))
    await ended.wait()
    taking.cancel()
    await asyncio.wait([taking])
    listener.close()
    if callers.asking:
        await asyncio.wait(callers.asking, timeout=_LAST_WORDS)
    # asyncio.run() cancels the others.


class _Callers:
    """The connections, a task each. `asking` are those whose request has arrived."""

    def __init__(self, service: VMService) -> None:
        self._service = service
        self._tasks: dict[asyncio.Task[None], None] = {}  # the oldest first
        self.asking = set[asyncio.Task[None]]()

    async def take(self, listener: socket.socket) -> None:
        # Not asyncio's server: it makes all parts of a connection for callers that have gone, a hundred at once.
        loop = asyncio.get_running_loop()
        while True:
            try:
                caller, _ = await loop.sock_accept(listener)
            except OSError as error:  # no descriptor is left
                _log.error("no connection can be taken: %s", error.strerror)
                await asyncio.sleep(_AGAIN)
                continue
            if len(self._tasks) >= _CONNECTIONS:
                oldest = min(self._tasks, key=self.asking.__contains__)
                _log.warning("a connection ends: more than %d connections", _CONNECTIONS)
                oldest.cancel()
                await asyncio.wait([oldest])
            task = loop.create_task(self._serve(caller))
            self._tasks[task] = None
            task.add_done_callback(self._forget)
            await asyncio.sleep(0)  # for its request to be read: it may be the oldest without one soon

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        self.asking.discard(task)

    async def _serve(self, caller: socket.socket) -> None:
        with caller, suppress(ConnectionError, TimeoutError):  # it has gone, or does not read why
            try:
                line = await _request(caller)
                with _ending_with(caller) as task:
                    self.asking.add(task)
                    await self._answer(caller, line)
            except ProgramError as error:
                await _send(caller, problems_line(error.problems), _PATIENCE)
            except TimeoutError:
                _log.warning("a connection ends: its answer is not taken in time")

    async def _answer(self, caller: socket.socket, line: bytes) -> None:
        method, request = read_request(line)
        try:
            answers = self._service.methods[method](**vars(request))
            if isinstance(answers, AsyncGenerator):
                async with aclosing(answers):
                    async for answer in answers:
                        await _send(caller, answer_line(answer), None)
                await _send(caller, END, None)
            else:
                await _send(caller, answer_line(await answers) + END, _PATIENCE)
        except (ProgramError, ConnectionError, TimeoutError):
            raise
        except Exception as error:
            _log.exception("%s failed", method.name)
            raise Refusal(f"ctl {method.name}", "has failed in the launcher", "its log says how") from error


async def _request(caller: socket.socket) -> bytes:
    """Receive a request's line; Refusal if it is too long, late, or not the only one."""
    loop, data, part = asyncio.get_running_loop(), bytearray(), b""
    try:
        async with asyncio.timeout(_PATIENCE):
            while b"\n" not in part:
                part = await loop.sock_recv(caller, _READ)
                if not part:
                    raise ConnectionError("it has gone")
                data += part
                if len(data) > LONGEST_REQUEST:
                    raise Refusal("the request", f"has more than {LONGEST_REQUEST} bytes", "ask for less at once")
    except TimeoutError as error:
        raise Refusal("the request", f"is not there in {_PATIENCE:.0f} s", "expected a whole line") from error
    if not data.endswith(b"\n") or data.count(b"\n") > 1:
        raise Refusal("the request", "has more after its line", "expected one request a connection")
    return bytes(data)


async def _send(caller: socket.socket, line: bytes, patience: float | None) -> None:
    async with asyncio.timeout(patience):
        await asyncio.get_running_loop().sock_sendall(caller, line)


@contextmanager
def _ending_with(caller: socket.socket) -> Iterator[asyncio.Task[Any]]:
    """Yield this task, and cancel it once the caller closes its end, or sends more, which is not allowed."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def end() -> None:
        loop.remove_reader(caller)
        task.cancel()

    loop.add_reader(caller, end)
    try:
        yield task
    finally:
        loop.remove_reader(caller)
