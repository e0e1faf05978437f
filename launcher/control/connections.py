"""gRPC on a socket, by grpclib, with a bound on all that a caller can have of it.

What is not the program's end must not fill the memory that QEMU shares with it, nor keep another caller out. grpclib
and h2 themselves bound what is unread on a connection (HTTP/2's windows), the calls that are open on one (100), and the
length of their headers (64 KiB).
"""

import asyncio
import logging
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import grpclib.server
from grpclib.config import Configuration
from grpclib.const import Cardinality, Handler, Status
from grpclib.encoding.proto import ProtoCodec
from grpclib.exceptions import GRPCError
from grpclib.protocol import AbstractHandler, Connection, EventsProcessor, H2Protocol, Stream
from grpclib.server import request_handler

_log = logging.getLogger(__name__)

_CONNECTIONS = 32  # another one ends the one that is quiet the longest
_SILENT = 5.0  # seconds without a call, after which a connection ends
_CALLS = 32  # at once, of all connections; the one that is always taken besides
_CALLS_OF_ONE = 8  # at once, of one connection
_WORN = 1000  # calls, after which a connection ends: h2 remembers something of each
_HEADERS = 1 << 13  # bytes of a call's headers
_FRAME = 512  # bytes that a frame of a request counts beside its content: what it takes to keep it
_WINDOW = (1 << 16) - 1  # bytes; the least that HTTP/2 knows
_READ = 1 << 14  # bytes at once: what comes in them is dealt with before another connection's turn
_LAST_WORDS = 1.0  # seconds for callers to hear how it ended


class Server:
    """Serves grpclib's `services`. A request has at most so many bytes. `always` is the path of the method that is
    answered whatever else is at work."""

    def __init__(self, services: Sequence[Any], *, request: int, always: str | None = None) -> None:
        # grpclib's own serves without bounds; what it makes for a connection has the parts of ours.
        plain = grpclib.server.Server(
            services,
            codec=ProtoCodec(),
            config=Configuration(http2_connection_window_size=_WINDOW, http2_stream_window_size=_WINDOW),
        )._protocol_factory()
        assert isinstance(plain.handler, grpclib.server.Handler)
        self.config, self.h2_config, self.handler = plain.config, plain.h2_config, plain.handler
        self.request, self.always = request, always
        self.connections: set[_Connection] = set()

    def connection(self) -> "_Connection":
        return _Connection(self)

    def calls(self) -> int:
        return sum(connection.calls.open for connection in self.connections)

    def admit(self, newcomer: "_Connection") -> None:
        """Have room for the newcomer: of the process that has the most connections, the one that is quiet the longest
        ends, or else the oldest."""
        others = set(self.connections)
        self.connections.add(newcomer)
        if len(others) >= _CONNECTIONS:
            of_process = Counter(connection.process for connection in self.connections)
            last = max(others, key=lambda one: (of_process[one.process], not one.calls.open, -one.since))
            _log.warning(
                "%d connections, %d of them of process %d; one of these ends",
                len(self.connections), of_process[last.process], last.process,
            )  # fmt: skip
            last.abort()


class _Connection(H2Protocol, asyncio.BufferedProtocol):
    """grpclib's, which ends when it is quiet for too long, does not speak gRPC, or is one too many."""

    def __init__(self, server: Server) -> None:
        self.calls = _Calls(self, server)
        super().__init__(self.calls, server.config, server.h2_config)
        self._server = server
        self._read = bytearray(_READ)
        self._transport: asyncio.Transport
        self._silence: asyncio.TimerHandle | None = None
        #: The process at the other end, and when it connected or its last call ended.
        self.process, self.since = 0, 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        self.processor = _Processor(self.calls, self.connection, self._server.request)
        self._transport = transport
        credentials = transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self.process = struct.unpack("3i", credentials)[0]
        self.is_quiet()
        self._server.admit(self)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._read

    def buffer_updated(self, size: int) -> None:
        try:
            self.data_received(bytes(self._read[:size]))
        except Exception as error:
            _log.warning("process %d is hung up on: %s", self.process, error or type(error).__name__)
            self.abort()
        if self._transport.is_closing():
            self._transport.abort()  # what it does not read would keep it open

    def pause_writing(self) -> None:
        super().pause_writing()
        self._transport.pause_reading()  # each frame of some kinds is answered by another

    def resume_writing(self) -> None:
        super().resume_writing()
        self._transport.resume_reading()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.talks()
        self._server.connections.discard(self)
        super().connection_lost(exc)

    def is_quiet(self) -> None:
        """It has no call from now on."""
        self.talks()
        if self._transport.is_closing():
            return
        self.since = time.monotonic()
        self._silence = asyncio.get_running_loop().call_later(_SILENT, self.abort)
        if self.connection.streams_started >= _WORN:
            self._transport.close()

    def talks(self) -> None:
        """It has a call from now on, or is no more."""
        if self._silence is not None:
            self._silence.cancel()

    def end(self) -> None:
        """Say that nothing more comes; the caller closes the connection."""
        self._transport.write_eof()

    def abort(self) -> None:
        self._server.connections.discard(self)
        self._transport.abort()


class _Calls(AbstractHandler):
    """The calls of one connection, from their headers to their end."""

    def __init__(self, connection: _Connection, server: Server) -> None:
        self._connection = connection
        self._server = server
        self._tasks: dict[Stream, asyncio.Task[None]] = {}

    @property
    def open(self) -> int:
        """Those that are not answered. Who has an answer may ask again before the loop comes to `_end`."""
        return sum(not task.done() for task in self._tasks.values())

    def accept(self, stream: Stream, headers: Any, release_stream: Callable[[], None]) -> None:
        if sum(len(name) + len(value) for name, value in headers) > _HEADERS:
            raise ValueError(f"a call's headers have more than {_HEADERS} bytes")
        if self._connection.connection.streams_started > 2 * _WORN:
            raise ValueError(f"more than {2 * _WORN} calls on one connection, and always one at work")
        path = dict(headers).get(":path", "")
        busy = self.open >= _CALLS_OF_ONE or (path != self._server.always and self._server.calls() >= _CALLS)
        grpc = self._server.handler
        mapping = {path: _BUSY} if busy else grpc.mapping
        answering = request_handler(mapping, stream, headers, grpc.codec, None, grpc.dispatch, lambda: None)
        self._connection.talks()
        task = self._tasks[stream] = asyncio.get_running_loop().create_task(answering)
        # Here and not in answering, whose first step a cancellation may forestall.
        task.add_done_callback(lambda _: self._end(stream, release_stream))

    def cancel(self, stream: Stream) -> None:
        if (task := self._tasks.pop(stream, None)) is not None:
            task.cancel()

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    def _end(self, stream: Stream, release_stream: Callable[[], None]) -> None:
        self._tasks.pop(stream, None)
        release_stream()
        if not self._tasks:
            self._connection.is_quiet()


async def _refuse(stream: Any) -> None:
    raise GRPCError(
        Status.RESOURCE_EXHAUSTED,
        f"{_CALLS} calls are at work, or {_CALLS_OF_ONE} of this connection; ask again when one of them has ended",
    )


_BUSY = Handler(_refuse, Cardinality.UNARY_UNARY, type(None), type(None))


class _Processor(EventsProcessor):
    def __init__(self, handler: AbstractHandler, connection: Connection, most: int) -> None:
        super().__init__(handler, connection)
        self._most = most

    def process(self, event: Any) -> None:
        with suppress(NotImplementedError):  # what nobody knows is to be ignored (RFC 9113, 5.5)
            super().process(event)

    def process_data_received(self, event: Any) -> None:
        """Keep what comes of a request, up to the most; the call ends where there is more."""
        stream = self.streams.get(event.stream_id)
        if stream is not None:
            stream.data_received += _FRAME
            if stream.data_received + len(event.data) > self._most:
                if stream.wrapper is None:  # all of it came at once with the headers
                    raise ValueError(f"a request has more than {self._most} bytes")
                stream.wrapper.cancel(GRPCError(Status.RESOURCE_EXHAUSTED, f"a request has at most {self._most} bytes"))
                self.connection.ack(event.stream_id, event.flow_controlled_length)
                return
        super().process_data_received(event)


async def serve(server: Server, listener: socket.socket, ended: Callable[[], Awaitable[Any]]) -> None:
    """Answer who comes, until `ended` returns; calls in progress have a moment then."""
    logging.getLogger("grpclib").setLevel(logging.WARNING)  # every call that is cancelled is news to it
    accepting = await asyncio.get_running_loop().create_unix_server(server.connection, sock=listener)
    await ended()
    accepting.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(_LAST_WORDS):
            while server.calls():
                await asyncio.sleep(0.01)
            await asyncio.sleep(0)  # for _end, which may acknowledge what the last of them was sent
            # Who is hung up on while it still reads and acknowledges loses the answer that it has: it goes first.
            for connection in server.connections:
                connection.end()
            while server.connections:
                await asyncio.sleep(0.01)
    for connection in list(server.connections):
        connection.abort()
