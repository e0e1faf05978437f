"""The guest's screen on a local port: each client gets a `gpu-launcher ctl vnc` in the pod."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

from program.errors import Refusal, UserError

_CLIENTS = 8  # at once
_LOOK = 0.5  # seconds between two looks at whether the viewer has ended


class Viewer(Enum):
    """The viewers that `kubectl virt` knows on Linux."""

    TIGER = "tiger"
    REMOTE_VIEWER = "remote-viewer"


_PROGRAMS = {Viewer.REMOTE_VIEWER: "remote-viewer", Viewer.TIGER: "vncviewer"}


def viewer_command(
    port: int, kind: Viewer | None, named: str | None, environ: Mapping[str, str] = os.environ
) -> list[str] | None:
    """Return the command that shows the screen on that port: the named viewer, or the first on PATH; None without any.
    UserError if a named one is missing."""
    for each in [kind] if kind else _PROGRAMS:
        if program := shutil.which(named or _PROGRAMS[each], path=environ.get("PATH")):
            is_tiger = each is Viewer.TIGER or Path(program).name == _PROGRAMS[Viewer.TIGER]
            return [program, f"127.0.0.1:{port}" if is_tiger else f"vnc://127.0.0.1:{port}"]
    if kind or named:
        program = named or _PROGRAMS[kind or Viewer.TIGER]
        raise UserError(program, "is no program that can be started", "name one with --vnc-path, or take --proxy-only")
    return None


@contextmanager
def listening(address: str, port: int) -> Iterator[socket.socket]:
    """Listen on this address and port; 0 means any free port. Refusal if the port cannot be opened."""
    try:
        server = socket.create_server((address, port))
    except OSError as error:
        raise Refusal(f"{address}:{port}", f"cannot be had: {error.strerror}", "name another port") from error
    with server:
        yield server


def serve(server: socket.socket, command: Sequence[str], viewer: Sequence[str] | None) -> None:
    """Start the command for each client, with the client as its input and output, until the viewer ends; without a
    viewer, for ever."""
    server.settimeout(_LOOK)
    shown = subprocess.Popen(viewer) if viewer else None  # noqa: S603 (no shell)
    joined: list[subprocess.Popen[bytes]] = []
    try:
        while shown is None or shown.poll() is None:
            joined = [each for each in joined if each.poll() is None]
            try:
                client, _ = server.accept()
            except TimeoutError:
                continue
            with client:
                if len(joined) < _CLIENTS:
                    client.setblocking(True)
                    joined.append(subprocess.Popen(command, stdin=client.fileno(), stdout=client.fileno()))  # noqa: S603 (no shell)
    finally:
        for each in [*joined, *([shown] if shown else [])]:
            each.kill()
            each.wait()
