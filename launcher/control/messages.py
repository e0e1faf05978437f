"""gRPC's messages and statuses as HTTP/2 carries them, for both ends of the control socket.

https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md, https://grpc.io/docs/guides/status-codes
"""

import struct
from enum import IntEnum
from urllib.parse import quote, unquote

CONTENT_TYPE = "application/grpc"

#: The most bytes of one message; gRPC's own default. A manifest of Kubernetes has 1.5 MiB at most.
LONGEST = 4 << 20

_PREFIX = struct.Struct(">?I")  # whether it is compressed, and its length


class Status(IntEnum):
    """Those of gRPC's statuses that are used here."""

    OK = 0
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13


class RPCError(Exception):
    """A call that ends with another status than OK, and what its caller is told."""

    def __init__(self, status: Status, words: str) -> None:
        super().__init__(words)
        self.status = status


def framed(message: bytes) -> bytes:
    """A message as it goes into the stream, behind its prefix."""
    return _PREFIX.pack(False, len(message)) + message


class Unframing:
    """The messages in a stream's bytes, as they come in."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def take(self, data: bytes) -> list[bytes]:
        """More bytes, and the messages that are whole with them. RPCError for one that is compressed or too long."""
        self._bytes += data
        messages = []
        while len(self._bytes) >= _PREFIX.size:
            compressed, length = _PREFIX.unpack_from(self._bytes)
            if compressed:
                raise RPCError(Status.UNIMPLEMENTED, "the message is compressed; expected grpc-encoding identity")
            if length > LONGEST:
                raise RPCError(Status.RESOURCE_EXHAUSTED, f"the message has {length} bytes; expected at most {LONGEST}")
            end = _PREFIX.size + length
            if len(self._bytes) < end:
                break
            messages.append(bytes(self._bytes[_PREFIX.size : end]))
            del self._bytes[:end]
        return messages


def escaped(words: str) -> str:
    """What goes into grpc-message: ASCII, with whatever else percent-encoded."""
    return quote(words, safe="".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%"))


def unescaped(message: str) -> str:
    """The words of a grpc-message."""
    return unquote(message)
