"""The server's end of one gRPC connection: HTTP/2 by h2, a thread for each call.

grpcio would do it in fewer lines, and wakes the idle process fifty times a second: docs/decisions/0025.
"""

import logging
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress

from google.protobuf.message import DecodeError
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, Event, RequestReceived, StreamEnded, StreamReset
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from launcher.control.messages import CONTENT_TYPE, RPCError, Status, Unframing, escaped, framed
from launcher.control.methods import Call, Method
from launcher.errors import LauncherError
from program.problem import one_line

_log = logging.getLogger(__name__)

#: Calls at once on one connection; a client with more waits (SETTINGS_MAX_CONCURRENT_STREAMS).
_CALLS = 16
_READ = 1 << 16


class _Stream:
    """A call's request, as far as it has come."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.call = Call()
        self.messages: list[bytes] = []
        self.unframing = Unframing()
        self.answered = False  # headers have been sent


class Connection:
    """`serve` in a thread of its own; `finish` from any other."""

    def __init__(self, peer: socket.socket, methods: Mapping[str, Method]) -> None:
        self._peer = peer
        self._methods = methods
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        self._h2.local_settings = Settings(client=False, initial_values={SettingCodes.MAX_CONCURRENT_STREAMS: _CALLS})
        self._streams: dict[int, _Stream] = {}
        self._over = False
        # For all of the above, and what is sent; notified when there is room to send, when a call ends, and at the end.
        self._changed = threading.Condition()

    def serve(self) -> None:
        """Answer until the client goes, or breaks HTTP/2, or finish() is called."""
        try:
            with self._changed:
                self._h2.initiate_connection()
                self._flush()
            while data := self._peer.recv(_READ):
                with self._changed:
                    try:
                        for event in self._h2.receive_data(data):
                            self._take(event)
                    finally:
                        self._flush()  # a ProtocolError's, too: it says why
                    self._changed.notify_all()
        except (OSError, ProtocolError) as error:
            _log.debug("a client of the control socket is gone: %s", error)
        finally:
            with self._changed:
                self._over = True
                streams = list(self._streams.values())
                self._changed.notify_all()
            self._peer.close()
            for stream in streams:
                stream.call.end()

    def finish(self, seconds: float) -> None:
        """Let the calls in progress end for so long, and the connection then."""
        if self._changed.acquire(timeout=seconds):  # in vain where the client reads nothing of what is being sent
            try:
                self._changed.wait_for(lambda: self._over or not self._streams, seconds)
                with suppress(OSError, ProtocolError):
                    self._h2.close_connection()
                    self._peer.send(self._h2.data_to_send(), socket.MSG_DONTWAIT)
            finally:
                self._changed.release()
        with suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)

    def _take(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            self._open(event)
        elif isinstance(event, DataReceived):
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            if (stream := self._streams.get(event.stream_id)) is not None:
                try:
                    stream.messages += stream.unframing.take(event.data)
                except RPCError as error:
                    del self._streams[event.stream_id]
                    self._end(event.stream_id, stream, error.status, str(error))
                    if event.stream_ended is None:
                        self._h2.reset_stream(event.stream_id, ErrorCodes.NO_ERROR)  # it need not send the rest
        elif isinstance(event, StreamEnded):
            if (stream := self._streams.get(event.stream_id)) is not None:
                threading.Thread(target=self._answer, args=(event.stream_id, stream), daemon=True).start()
        elif isinstance(event, StreamReset) and (stream := self._streams.pop(event.stream_id, None)) is not None:
            stream.call.end()

    def _open(self, event: RequestReceived) -> None:
        headers = {bytes(name): bytes(value) for name, value in event.headers}
        if not headers.get(b"content-type", b"").startswith(CONTENT_TYPE.encode()):
            self._h2.send_headers(event.stream_id, [(":status", "415")], end_stream=True)
            return
        self._streams[event.stream_id] = _Stream(headers[b":path"].decode(errors="replace"))

    def _answer(self, stream_id: int, stream: _Stream) -> None:
        status, words = self._answered(stream_id, stream)
        with self._changed, suppress(OSError, ProtocolError):
            if self._streams.pop(stream_id, None) is not None and not self._over:
                self._end(stream_id, stream, status, words)
                self._flush()
            self._changed.notify_all()

    def _answered(self, stream_id: int, stream: _Stream) -> tuple[Status, str]:
        """Send the call's answers; how it has ended."""
        method = self._methods.get(stream.path)
        if method is None:
            return Status.UNIMPLEMENTED, f"{stream.path} is not served here"
        try:
            if len(stream.messages) != 1:
                return Status.INVALID_ARGUMENT, f"{len(stream.messages)} messages in the request; expected one"
            for answer in method.answer(method.request.FromString(stream.messages[0]), stream.call):
                self._send(stream_id, stream, framed(answer.SerializeToString()))
        except DecodeError:
            return Status.INVALID_ARGUMENT, f"the request is not a {method.request.DESCRIPTOR.full_name}"
        except RPCError as error:
            return error.status, str(error)
        except LauncherError as error:
            return Status.FAILED_PRECONDITION, one_line(error)
        except (OSError, ProtocolError) as error:
            return Status.INTERNAL, f"the caller is gone: {error}"
        except Exception:
            _log.exception("%s failed", stream.path)
            return Status.INTERNAL, f"{stream.path} failed; the launcher's log says how"
        return Status.OK, ""

    def _send(self, stream_id: int, stream: _Stream, data: bytes) -> None:
        """Send it as fast as the client takes it. ProtocolError or OSError where the client is gone."""
        while data:
            with self._changed:
                if not stream.answered:
                    stream.answered = True
                    self._h2.send_headers(stream_id, [(":status", "200"), ("content-type", CONTENT_TYPE)])
                self._changed.wait_for(lambda: self._over or self._h2.local_flow_control_window(stream_id) > 0)
                if self._over:
                    raise ConnectionAbortedError("the connection has ended")
                size = min(self._h2.local_flow_control_window(stream_id), self._h2.max_outbound_frame_size)
                self._h2.send_data(stream_id, data[:size])
                self._flush()
            data = data[size:]

    def _end(self, stream_id: int, stream: _Stream, status: Status, words: str) -> None:
        headers = [("grpc-status", str(int(status)))]
        if words:
            headers.append(("grpc-message", escaped(words)))
        if not stream.answered:
            headers = [(":status", "200"), ("content-type", CONTENT_TYPE), *headers]
        self._h2.send_headers(stream_id, headers, end_stream=True)

    def _flush(self) -> None:
        if data := self._h2.data_to_send():
            self._peer.sendall(data)
