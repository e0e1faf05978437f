"""A caller who speaks HTTP/2 frame by frame, and need not keep to it."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, ResponseReceived, TrailersReceived

from tests.waiting import allowed

INFO = "/kubevirt.hooks.info.Info/Info"
HEADERS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)


def message(content: bytes = b"") -> bytes:
    """As gRPC frames it."""
    return struct.pack(">?I", False, len(content)) + content


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One of HTTP/2 (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


class Requests:
    """The bytes of a connection's requests."""

    def __init__(self) -> None:
        self.h2 = H2Connection(H2Configuration(header_encoding="utf-8", validate_outbound_headers=False))
        self.h2.initiate_connection()

    def open(self, path: str, *headers: tuple[str, str], end: bool = False) -> int:
        """Begin a call; the number of its stream."""
        stream = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, [*HEADERS, (":path", path), *headers], end_stream=end)
        return stream

    def call(self, path: str, request: bytes = b"") -> int:
        """A whole request."""
        stream = self.open(path)
        self.h2.send_data(stream, message(request), end_stream=True)
        return stream


class Raw(Requests):
    def __init__(self) -> None:
        super().__init__()
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(allowed(30))
        self.events: list[Event] = []

    def flush(self) -> None:
        self.socket.sendall(self.h2.data_to_send())

    def hear(self) -> bool:
        """Whether there is more; what has come is in `events`."""
        data = self.socket.recv(1 << 16)
        for event in self.h2.receive_data(data):
            if isinstance(event, DataReceived):
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            self.events.append(event)
        with suppress(OSError):  # it may have gone meanwhile
            self.flush()
        return data != b""

    def status(self, stream: int) -> tuple[int, str]:
        """gRPC's status of that call, and its words. AssertionError where the connection ends without."""
        while True:
            for event in self.events:
                if isinstance(event, ResponseReceived | TrailersReceived) and event.stream_id == stream:
                    headers = {str(name): str(value) for name, value in event.headers}
                    if "grpc-status" in headers:
                        return int(headers["grpc-status"]), headers.get("grpc-message", "")
            assert self.hear(), self.events

    def is_hung_up_on(self) -> bool:
        """Whether the connection ends within the socket's patience."""
        try:
            while self.hear():
                pass
        except TimeoutError:
            return False
        except OSError:  # it was reset
            return True
        return True


@contextmanager
def raw(path: Path) -> Iterator[Raw]:
    caller = Raw()
    with caller.socket:
        caller.socket.connect(str(path))
        yield caller
