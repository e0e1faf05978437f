"""The kubelet's directories, and the sockets in them: the kubelet's own and those of its plugins."""

import asyncio
import logging
import os
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

from program.errors import Refusal
from program.sockets import is_stale

_log = logging.getLogger(__name__)

#: Which file a socket is: device, inode, time of making.
SocketIdentity: TypeAlias = tuple[int, int, int]

#: The prefix of the names of all our sockets.
PREFIX = "gpu-plugin-"
#: For a channel of gRPC to a socket. Go's servers refuse the encoded path that a unix: target would make the authority.
CHANNEL = (("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0))

_LONGEST_NAME = len(f"{PREFIX}00000000-00000000.sock")
_LONGEST_PATH = 107  # sun_path has 108 bytes, one of them the final zero


class Kubelet:
    """The kubelet's directories, and an event for changes of their entries. Refusal if one is missing.

    The kubelet listens on kubelet.sock (`socket`) in its device plugin `directory`. Our sockets are there too; or, with
    a `registry`, in its plugins_registry, where the kubelet looks for them.
    """

    def __init__(self, directory: Path, registry: Path | None) -> None:
        self.directory = kubelet_directory(directory, "device plugin directory", "--kubelet-dir")
        self.registry = registry and kubelet_directory(registry, "plugins_registry", "--plugins-registry")
        self.sockets = self.registry or self.directory
        self.socket = self.directory / "kubelet.sock"
        #: Set when an entry comes or goes: take it before looking, then wait for it.
        self.next_move = asyncio.Event()

    def moved(self) -> None:
        """Set the event: an entry came or went."""
        self.next_move.set()
        self.next_move = asyncio.Event()


def kubelet_directory(path: Path, what: str, flag: str) -> Path:
    """Return the directory, absolute; Refusal if it is missing or its path is too long for a socket.

    The error calls the directory the kubelet's `what`, and says that `flag` names another.
    """
    path, fix = path.absolute(), f"expected the kubelet's {what}, name it with {flag}"
    if not os.path.isdir(path):  # noqa: PTH112 (Path.is_dir raises for a name that is too long)
        raise Refusal(path, "no such directory", fix)
    longest = len(os.fsencode(path)) + 1 + _LONGEST_NAME
    if longest > _LONGEST_PATH:
        wrong = f"sockets below it would have {longest} bytes, and {_LONGEST_PATH} is the most Linux takes"
        raise Refusal(path, wrong, fix)
    return path


def identity_of(path: Path) -> SocketIdentity | None:
    """Return the identity of a file, None if it is missing. Inode numbers are reused, so the time is part of it."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def target(path: Path) -> str:
    """Return gRPC's name of a socket: a URI, in which some characters of a path have to be quoted."""
    return f"unix:{quote(str(path))}"


def remove_dead_sockets(directory: Path) -> None:
    """Remove our sockets on which nobody answers: a killed plugin leaves them behind."""
    for path in directory.glob(f"{PREFIX}*.sock"):
        if is_stale(path):
            remove(path)


def remove(path: Path) -> None:
    """Remove a socket, if it exists; log a failure."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("%s: cannot be removed: %s", path, error.strerror)
