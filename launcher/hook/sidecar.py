"""The sidecar as a process: it answers on a socket until it is told to end."""

import asyncio
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from launcher.control.faults import shorten
from launcher.hook.connections import Server, serve
from program.bootstrap import STOPS, hear
from program.errors import Refusal
from program.sockets import is_stale

_log = logging.getLogger(__name__)

#: Bytes: gRPC for Go takes as many of an answer by default. A domain has some 20 KiB, and so has a VMI.
_REQUEST = 1 << 22
_WAITING = 16  # connections that are not taken yet


def serve_until_stopped(path: Path, services: list[Any]) -> None:
    """Answer on this socket until SIGTERM or SIGINT, then remove it; Refusal if the socket cannot be made."""
    shorten("the hook's socket", "launcher.hook.connections", "grpclib.server", "asyncio")
    with _listening(path) as listener:
        _log.info("hook %s is there for KubeVirt", path)
        asyncio.run(_until_told(listener, services))


async def _until_told(listener: socket.socket, services: list[Any]) -> None:
    stop = asyncio.Event()
    hear(stop.set, *STOPS)
    await serve(Server(services, request=_REQUEST), listener, stop.wait)


@contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    """Listen on a socket that every user may connect to: KubeVirt's launcher may run as another user than the image's,
    and only the pod's containers see the directory."""
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            if is_stale(path):  # left by this container before it was restarted
                path.unlink()
            # By the umask, since between bind() and listen() nobody can connect: each further call there makes that
            # longer on a node without time for it.
            umask = os.umask(0o111)
            try:
                listener.bind(str(path))
            finally:
                os.umask(umask)
            listener.listen(_WAITING)
            listener.setblocking(False)
        except OSError as error:
            fix = "expected KubeVirt's volume for sockets to be there, and no other sidecar on this one"
            raise Refusal(path, f"cannot listen there: {error.strerror or error}", fix) from error
        try:
            yield listener
        finally:
            with suppress(OSError):
                path.unlink()
