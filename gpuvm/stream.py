"""A port of a pod, joined with standard input and output: `kubectl port-forward` has no such way."""

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
    """Call a `kubectl port-forward` of one port, and carry what comes both ways until the guest closes it."""
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
    """Carry standard input to the port beside its answers to standard output, until it is closed."""

    def send() -> None:
        while data := os.read(0, _CHUNK):
            port.sendall(data)
        port.shutdown(socket.SHUT_WR)

    threading.Thread(target=send, daemon=True).start()
    with open(1, "wb", closefd=False) as stdout:
        while data := port.recv(_CHUNK):
            stdout.write(data)
            stdout.flush()
