"""Joins a pod's port with standard input and output, which `kubectl port-forward` cannot do."""

import os
import re
import socket
import subprocess
import threading
from collections.abc import Sequence
from tempfile import TemporaryFile

from gpuvm.process import SECONDS, ProgramAnswer, error_of

_CHUNK = 1 << 16


def forwarded(command: Sequence[str]) -> None:
    """Start this `kubectl port-forward` of one port, and copy data both ways until the guest closes the port."""
    with TemporaryFile() as stderr, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr) as kubectl:  # noqa: S603
        late = threading.Timer(SECONDS, kubectl.kill)
        late.start()
        try:
            line = kubectl.stdout.readline(_CHUNK).decode(errors="replace") if kubectl.stdout else ""
            late.cancel()
            match = re.match(r"Forwarding from (?:127\.0\.0\.1|\[::1\]):(\d+) ->", line)
            if match is None:
                kubectl.kill()
                kubectl.wait()
                stderr.seek(0)
                raise error_of(
                    ProgramAnswer(kubectl.returncode, b"", stderr.read(_CHUNK).decode(errors="replace")), command
                )
            with socket.create_connection(("localhost", int(match[1])), SECONDS) as port:
                port.settimeout(None)
                _carry(port)
        finally:
            late.cancel()
            kubectl.kill()


def _carry(port: socket.socket) -> None:
    """Copy standard input to the port, and the port's data to standard output, until the port is closed."""

    def send() -> None:
        while data := os.read(0, _CHUNK):
            port.sendall(data)
        port.shutdown(socket.SHUT_WR)

    threading.Thread(target=send, daemon=True).start()
    with open(1, "wb", closefd=False) as stdout:
        while data := port.recv(_CHUNK):
            stdout.write(data)
            stdout.flush()
