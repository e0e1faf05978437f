"""grpcio's client, which is not ours, in the place of KubeVirt's launcher."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import grpc

from tests.waiting import allowed


class Caller:
    """Bytes go in and bytes come out, of whatever method."""

    def __init__(self, path: Path) -> None:
        self.channel = grpc.insecure_channel(f"unix:{path}", options=[("grpc.use_local_subchannel_pool", 1)])

    def __call__(self, method: str, request: bytes = b"", compression: Any = None) -> bytes:
        called: Any = self.channel.unary_unary(method)
        answer: bytes = called(request, timeout=allowed(30), compression=compression)
        return answer

    def several(self, method: str, requests: Iterable[bytes]) -> Any:
        """A future of the answer to several requests in one call."""
        made: Any = self.channel.stream_unary(method)
        return made.future(iter(requests), timeout=allowed(30))

    def status(self, method: str, request: bytes = b"", compression: Any = None) -> tuple[grpc.StatusCode, str]:
        """How a call fails."""
        return status_of(lambda: self(method, request, compression))


def status_of(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    try:
        call()
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    raise AssertionError("it is answered")
