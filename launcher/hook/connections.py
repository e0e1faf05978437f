"""gRPC on a socket, by grpclib, with a limit on calls, on a request's size and on connections.

Every process in the pod may call: the limits keep a faulty one from filling the sidecar's memory and from keeping
KubeVirt out (docs/decisions/0012-the-hook.md). grpclib and h2 bound a connection's unread data,
its open calls, and their headers; launcher.hook.methods has the deadlines.
"""

import asyncio
import logging
import os
import select
import socket
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import grpclib.server
from grpclib.config import Configuration
from grpclib.const import Handler, Status
from grpclib.encoding.proto import ProtoCodec
from grpclib.exceptions import GRPCError
from grpclib.protocol import H2Protocol

_log = logging.getLogger(__name__)

_CONNECTIONS = 32  # another one ends the oldest, of those without a call if there are any
_CALLS = 32  # at once
_WORN = 1000  # calls, after which a connection ends: h2 remembers something of each, and KubeVirt makes one
_WAITING = 4096  # connections that are not taken yet, the kernel's most by default; a connect beyond them is refused
_TAKEN = 512  # of them at once, before the event loop's other work has its turn
_MADE = 8  # of those whose callers are still there, as many get all parts of a connection at once
_STAYING = 256  # callers whose connections have no parts yet; others are hung up on
_AGAIN = 1.0  # seconds until connections are taken again, after none could be
_FRAME = 512  # bytes that each frame of a request counts besides its content: the memory to keep it
_WINDOW = (1 << 16) - 1  # bytes; the least that HTTP/2 allows
_READ = 1 << 14  # bytes read at once, and handled before another connection's turn
_LAST_WORDS = 1.0  # seconds for callers to hear how it ended


class Server:
    """Serves grpclib's `services`. `request`: the largest request, in bytes."""

    def __init__(self, services: Sequence[Any], *, request: int) -> None:
        self._handlers = {path: handler for each in services for path, handler in each.__mapping__().items()}
        config = Configuration(http2_connection_window_size=_WINDOW, http2_stream_window_size=_WINDOW)
        # grpclib's own server has no bounds; ours uses the parts that it makes for a connection.
        plain = grpclib.server.Server([self], codec=ProtoCodec(), config=config)._protocol_factory()
        assert isinstance(plain.handler, grpclib.server.Handler)
        self.config, self.h2_config, self._parts = plain.config, plain.h2_config, plain.handler
        self.request, self.calls = request, 0
        self.connections: dict[_Connection, None] = {}  # the oldest first

    def __mapping__(self) -> dict[str, Handler]:
        return {
            path: handler._replace(func=partial(self._answer, handler.func)) for path, handler in self._handlers.items()
        }

    async def _answer(self, answer: Callable[[Any], Awaitable[None]], stream: Any) -> None:
        if self.calls >= _CALLS:
            raise GRPCError(
                Status.RESOURCE_EXHAUSTED, f"{_CALLS} calls are at work; ask again when one of them has ended"
            )
        self.calls += 1
        try:
            await answer(stream)
        finally:
            self.calls -= 1

    def connection(self) -> "_Connection":
        parts = self._parts
        return _Connection(self, grpclib.server.Handler(parts.mapping, parts.codec, None, parts.dispatch))


class _Connection(H2Protocol, asyncio.BufferedProtocol):
    """grpclib's connection, which ends an older one if there are too many, and reads no more than it can answer."""

    def __init__(self, server: Server, handler: grpclib.server.Handler) -> None:
        super().__init__(handler, server.config, server.h2_config)
        self._server = server
        self._read = bytearray(_READ)
        self.was_heard = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        self.transport = transport
        known = self.processor.processors
        (data,) = (kind for kind, process in known.items() if process == self.processor.process_data_received)
        # Unknown frames are to be ignored (RFC 9113, 5.5).
        self.processor.processors = defaultdict(lambda: lambda event: None, {**known, data: self._keep})
        others = self._server.connections
        if len(others) >= _CONNECTIONS:
            least = min(others, key=lambda one: (bool(one.processor.streams), one.was_heard))
            least.hang_up(f"more than {_CONNECTIONS} connections")
        others[self] = None

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._read

    def buffer_updated(self, size: int) -> None:
        self.was_heard = True
        try:
            self.data_received(bytes(self._read[:size]))
            if self.connection.streams_started >= _WORN:
                self.hang_up(f"{_WORN} calls on one connection")
        except Exception as error:
            self.hang_up(str(error) or type(error).__name__)

    def _keep(self, event: Any) -> None:
        """Keep data of a request; end the call if the request is larger than the server's limit."""
        stream, most = self.processor.streams.get(event.stream_id), self._server.request
        if stream is not None:
            stream.data_received += _FRAME
            if stream.data_received + len(event.data) > most:
                if stream.wrapper is None:  # all of it came at once with the headers
                    raise ValueError(f"a request has more than {most} bytes")
                stream.wrapper.cancel(GRPCError(Status.RESOURCE_EXHAUSTED, f"a request has at most {most} bytes"))
                self.connection.ack(event.stream_id, event.flow_controlled_length)
                return
        self.processor.process_data_received(event)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.transport.pause_reading()  # each frame of some kinds is answered by another

    def resume_writing(self) -> None:
        super().resume_writing()
        self.transport.resume_reading()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._server.connections.pop(self, None)
        super().connection_lost(exc)

    def hang_up(self, why: str) -> None:
        _log.warning("a connection ends: %s", why)
        self._server.connections.pop(self, None)
        self.transport.abort()


@contextmanager
def _taking(listener: socket.socket, server: Server) -> Iterator[None]:
    """Accept waiting connections, and drop those whose callers have gone: asyncio's own server makes all parts of a
    connection for each, so a caller that reconnected in a loop kept others out. Callers that stay are served in turn, a
    few at once: each is heard before its connection ends for younger ones."""
    loop = asyncio.get_running_loop()
    made = set[asyncio.Task[Any]]()
    staying: list[int] = []
    again: asyncio.Handle | None = None

    def take() -> None:
        nonlocal again, staying
        new: list[int] = []
        try:
            while len(new) < _TAKEN:
                # accept() takes twice as long, and while the queue is full the kernel refuses others.
                new.append(listener._accept()[0])  # type: ignore[attr-defined]
        except (BlockingIOError, ConnectionAbortedError):
            pass
        except OSError as error:  # no descriptor is left
            if not new:
                _log.error("no connection can be taken: %s", error.strerror)
                loop.remove_reader(listener)
                again = loop.call_later(_AGAIN, take_again)
        callers = _without_gone(staying + new)
        staying, beyond = callers[_MADE:_STAYING], callers[_STAYING:]
        for caller in callers[:_MADE]:
            taken = socket.socket(fileno=caller)
            taken.setblocking(False)
            task = loop.create_task(loop.connect_accepted_socket(server.connection, taken))
            made.add(task)
            task.add_done_callback(made.discard)
        if beyond:
            _log.warning("%d connections end: more than %d wait", len(beyond), _STAYING)
            _close(beyond)
        if staying and again is None:
            again = loop.call_soon(take_again)

    def take_again() -> None:
        nonlocal again
        again = None
        loop.add_reader(listener, take)
        take()

    listener.listen(_WAITING)
    loop.add_reader(listener, take)
    try:
        yield
    finally:
        if again is not None:
            again.cancel()
        loop.remove_reader(listener)
        _close(staying)


def _without_gone(callers: list[int]) -> list[int]:
    """Close the connections whose callers have gone, and return the others."""
    poll = select.poll()
    for caller in callers:
        poll.register(caller, 0)
    gone = {caller for caller, _ in poll.poll(0)}  # POLLHUP, which is always asked for (poll(2))
    _close(gone)
    return [caller for caller in callers if caller not in gone]


def _close(callers: Iterable[int]) -> None:
    for caller in callers:
        os.close(caller)


async def serve(server: Server, listener: socket.socket, ended: Callable[[], Awaitable[Any]]) -> None:
    """Serve callers until `ended` returns; then calls in progress have a second."""
    logging.getLogger("grpclib").setLevel(logging.WARNING)  # every call that is cancelled is news to it
    with _taking(listener, server):
        await ended()
    listener.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(_LAST_WORDS):
            while server.calls:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.01)  # for the trailers of the last of them
            # A caller that still reads and acknowledges would lose its answer if we hung up: the caller goes first.
            for connection in server.connections:
                connection.transport.write_eof()
            while server.connections:
                await asyncio.sleep(0.01)
    for connection in list(server.connections):
        connection.transport.abort()
