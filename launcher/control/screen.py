"""The guest's screen: a picture of it; and VNC, joined with file descriptors or with a port of this host."""

import base64
import ipaddress
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from launcher.control.client import ask_for_all
from launcher.control.console import connected, join
from launcher.control.messages import SCREENSHOT
from program.errors import Refusal, UserError

_SUFFIXES = {"image/png": ".png", "image/x-portable-pixmap": ".ppm"}
_LARGEST = 1 << 27  # bytes of a picture: four times what a screen of 3840x2160 has
_CLIENTS = 8  # of VNC at once
_UNREACHED = "the guest's screen cannot be reached"
_UNREAD = 60  # seconds in which a client has to take something of what it is sent


def picture_of(control: Path) -> tuple[str, bytes]:
    """Take a picture of the guest's first screen; return its file's suffix and content. Refusal without a screen."""
    mime_type, data = "", bytearray()
    for part in ask_for_all(control, SCREENSHOT):
        mime_type = mime_type or part.mime_type
        data += base64.b64decode(part.data)
        if len(data) > _LARGEST:
            raise Refusal("the screenshot", f"has more than {_LARGEST >> 20} MiB", "expected a screen's size of it")
    if mime_type not in _SUFFIXES or not data:
        raise Refusal("the screenshot", f"is {mime_type or 'empty'}", f"expected {' or '.join(_SUFFIXES)} of libvirt")
    return _SUFFIXES[mime_type], bytes(data)


def join_vnc(path: Path, source: int, sink: int) -> None:
    """Join QEMU's socket at this path with two file descriptors until one of the three ends."""
    with connected(path, _UNREACHED) as qemu:
        join(qemu, source, sink, ends_with_source=True)


@contextmanager
def listening(place: str) -> Iterator[socket.socket]:
    """Listen at an address and port like `127.0.0.1:5900`. UserError for any other form, and for an address that other
    hosts reach: QEMU asks for no password. `kubectl port-forward` connects from within the pod."""
    address, _, port = place.rpartition(":")
    try:
        ip = ipaddress.ip_address(address.removeprefix("[").removesuffix("]"))
        number = int(port)
        if not (port.isascii() and port.isdecimal() and 0 < number < 1 << 16):
            raise ValueError(port)
    except ValueError as error:
        wrong = "is not an address and a port"
        raise UserError(f"--listen {place}", wrong, "expected one like 127.0.0.1:5900 or [::1]:5900") from error
    if not ip.is_loopback:
        raise UserError(
            f"--listen {place}",
            "would show the guest's screen to other hosts, without a password",
            "expected 127.0.0.1:PORT or [::1]:PORT, which kubectl port-forward reaches",
        )
    with socket.socket(socket.AF_INET if ip.version == 4 else socket.AF_INET6) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((str(ip), number))
        except OSError as error:
            raise Refusal(f"--listen {place}", f"cannot be had: {error.strerror}", "name another port") from error
        server.listen()
        yield server


def serve_vnc(server: socket.socket, path: Path) -> None:
    """Join each client with QEMU's socket at this path, eight at once, until the guest ends: connecting to QEMU then
    fails with a Refusal."""
    free = threading.Semaphore(_CLIENTS)

    def serve(client: socket.socket, qemu: socket.socket) -> None:
        with client, qemu, suppress(OSError):
            sink = os.dup(client.fileno())
            try:
                join(qemu, client.fileno(), sink, ends_with_source=True)
            finally:
                os.close(sink)
        free.release()

    while True:
        free.acquire()
        client, _ = server.accept()
        # A write to a client that does not read fails after that time, and the thread ends.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _UNREAD, 0))
        threading.Thread(target=serve, args=(client, connected(path, _UNREACHED)), name="vnc", daemon=True).start()
