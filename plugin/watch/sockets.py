"""The kubelet's directories, and the sockets in them: the kubelet's own and those of its plugins."""

import asyncio
import logging
import os
import socket
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

from program.errors import Refusal

_log = logging.getLogger(__name__)

#: Which file a socket is: device, inode, time of making.
SocketIdentity: TypeAlias = tuple[int, int, int]

#: What the name of every socket of ours begins with.
PREFIX = "gpu-plugin-"
#: For a channel of gRPC to a socket. Go's servers refuse the encoded path that a unix: target would make the authority.
CHANNEL = (("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0))

_LONGEST_NAME = len(f"{PREFIX}00000000-00000000.sock")
_LONGEST_PATH = 107  # sun_path has 108 bytes, one of them the final zero


class Kubelet:
    """The kubelet's directories, and a bell that rings when an entry of theirs comes or goes.

    `directory` is where it listens on kubelet.sock and where our sockets stand; or, with `registry`, ours stand in its
    plugins_registry, and it comes for them.
    """

    def __init__(self, directory: Path, registry: Path | None) -> None:
        self.directory = directory
        self.registry = registry
        #: Set when something comes or goes: take it before looking, then wait for it.
        self.next_move = asyncio.Event()

    @property
    def sockets(self) -> Path:
        """Where our sockets stand."""
        return self.registry or self.directory

    @property
    def socket(self) -> Path:
        return self.directory / "kubelet.sock"

    def moved(self) -> None:
        """Say that something came or went."""
        self.next_move.set()
        self.next_move = asyncio.Event()


def kubelet_directory(path: Path, what: str, flag: str) -> Path:
    """Return the directory, absolute; Refusal if it is missing or its path is too long for a socket.

    `what` it is of the kubelet's, and the `flag` that names another, are for whoever reads the error.
    """
    path = path.absolute()
    if not os.path.isdir(path):  # noqa: PTH112 (Path.is_dir raises for a name that is too long)
        raise Refusal(path, "no such directory", f"expected the kubelet's {what}, name it with {flag}")
    longest = len(os.fsencode(path)) + 1 + _LONGEST_NAME
    if longest > _LONGEST_PATH:
        raise Refusal(
            path,
            f"sockets below it would have {longest} bytes, and {_LONGEST_PATH} is the most Linux takes",
            f"expected the kubelet's {what}, name it with {flag}",
        )
    return path


def identity_of(path: Path) -> SocketIdentity | None:
    """Return which file this is; None if there is none. Inode numbers are used again, so the time counts."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def target(path: Path) -> str:
    """Return the socket as gRPC names it: a URI, in which some characters of a path have to be quoted."""
    return f"unix:{quote(str(path))}"


def remove_dead_sockets(directory: Path) -> None:
    """Remove the sockets of ours that nobody answers on: a plugin that was killed leaves them behind."""
    for path in directory.glob(f"{PREFIX}*.sock"):
        if not path.is_socket():
            continue
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                remove(path)
            except BlockingIOError:
                continue  # it has more callers than it can take
            except OSError as error:
                _log.warning("%s: left as it is: %s", path, error)


def remove(path: Path) -> None:
    """Remove a socket, if it is there; the log says where that fails."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("%s: cannot be removed: %s", path, error.strerror)
