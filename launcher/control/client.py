"""The other end of the control socket, for one call at a time: what `gpu-launcher ctl` has of gRPC."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, ResponseReceived, StreamEnded, StreamReset, TrailersReceived
from h2.exceptions import ProtocolError

from launcher.control.messages import CONTENT_TYPE, RPCError, Status, Unframing, framed, unescaped
from launcher.errors import Refusal

_M = TypeVar("_M", bound=Message)

_PATIENCE = 20.0  # seconds for the one answer of a call; as KubeVirt's client has for the longest of these
_READ = 1 << 16


def ask(path: Path, method: str, request: Message, answer: type[_M]) -> _M:
    """The one answer to this call. Refusal where nobody serves there, or what is asked is refused."""
    found = list(ask_for_all(path, method, request, answer, patience=_PATIENCE))
    if len(found) != 1:
        raise Refusal(f"{path}: {len(found)} answers to {method}; expected one, from gpu-launcher run")
    return found[0]


def ask_for_all(
    path: Path, method: str, request: Message, answer: type[_M], patience: float | None = None
) -> Iterator[_M]:
    """Each answer to this call as it comes, until the server has no more; `patience` is in seconds for each."""
    with _speaking(path, patience), socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(patience)
        peer.connect(str(path))
        h2 = H2Connection(H2Configuration(header_encoding="utf-8"))
        h2.initiate_connection()
        headers = [(":method", "POST"), (":scheme", "http"), (":path", method), (":authority", "localhost")]
        h2.send_headers(1, [*headers, ("te", "trailers"), ("content-type", CONTENT_TYPE)])
        h2.send_data(1, framed(request.SerializeToString()), end_stream=True)  # none of ours fills a window
        peer.sendall(h2.data_to_send())
        unframing = Unframing()
        while data := peer.recv(_READ):
            for event in h2.receive_data(data):
                if isinstance(event, DataReceived):
                    h2.acknowledge_received_data(event.flow_controlled_length, 1)
                    yield from map(answer.FromString, unframing.take(event.data))
                elif isinstance(event, ResponseReceived | TrailersReceived):
                    _refuse_failure(path, event)
                elif isinstance(event, StreamEnded):
                    return
                elif isinstance(event, StreamReset):
                    raise Refusal(f"{path}: the launcher has cancelled {method}; its log says why")
            if data := h2.data_to_send():
                peer.sendall(data)
        raise Refusal(f"{path}: the launcher has ended before it answered; its log says how")


@contextmanager
def _speaking(path: Path, patience: float | None) -> Iterator[None]:
    """What can go wrong on the way is a Refusal."""
    try:
        yield
    except TimeoutError as error:
        raise Refusal(
            f"{path}: no answer in {patience:.0f} s; the launcher is there and hangs, its log says in what"
        ) from error
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
        raise Refusal(
            f"{path}: nobody serves there; expected the control socket of a gpu-launcher run, which is there while it "
            "runs: look at the pod's log, or name another with --socket"
        ) from error
    except PermissionError as error:
        raise Refusal(f"{path}: {error.strerror}; expected to be the user that gpu-launcher run is, or root") from error
    except (ProtocolError, DecodeError, RPCError) as error:
        raise Refusal(f"{path}: who serves there is no gpu-launcher run: {error}") from error
    except OSError as error:
        raise Refusal(f"{path}: the launcher has ended before it answered: {error.strerror or error}") from error


def _refuse_failure(path: Path, event: Event) -> None:
    """Refusal where these headers or trailers tell of a failure."""
    headers = {str(name): str(value) for name, value in event.headers}  # type: ignore[attr-defined]
    if (code := headers.get(":status", "200")) != "200":
        raise Refusal(f"{path}: who serves there is no gpu-launcher run: HTTP status {code}")
    status, words = headers.get("grpc-status", "0"), unescaped(headers.get("grpc-message", ""))
    if status == str(int(Status.FAILED_PRECONDITION)):
        raise Refusal(words)  # the VM's
    if status != str(int(Status.OK)):
        raise Refusal(
            f"{path}: {words or 'no answer'} (gRPC status {status}); expected a gpu-launcher run to serve there"
        )
