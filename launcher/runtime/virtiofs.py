"""virtiofsd, a child for each directory that the guest mounts: as whoever the launcher is, without a capability.

It needs no sandbox of its own, which would take one: the container is all that it sees
(https://gitlab.com/virtio-fs/virtiofsd, "--sandbox"). When QEMU hangs up it ends with 0; any other end takes the
guest's file system away, which no QEMU gets back.
"""

import logging
import os
import resource
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from launcher import paths
from launcher.storage.places import directory
from launcher.storage.shares import Share
from program.errors import Refusal
from program.problem import one_line

_log = logging.getLogger(__name__)

_MOST_FILES = 1_000_000  # virtiofsd's own; it has one open for each that the guest remembers
_LONGEST = 1000  # bytes of a line of its log
_ENDING = 3.0  # seconds to end by itself, since QEMU has hung up


@contextmanager
def served(shares: Iterable[Share], lost: Callable[[], object], program: str = paths.VIRTIOFSD) -> Iterator[None]:
    """QEMU can mount each of them within. `lost` is called, in a thread, when the program of one has ended otherwise
    than after QEMU. Refusal, with nothing left, where one cannot be had.
    """
    with ExitStack() as stack:
        for share in shares:
            stack.enter_context(_served(share, lost, program))
        yield


def forget(shares: Iterable[Share]) -> None:
    """Take away the sockets that a killed launcher has left."""
    for share in shares:
        with suppress(OSError):
            share.socket.unlink()
            share.socket.parent.rmdir()


@contextmanager
def _served(share: Share, lost: Callable[[], object], program: str) -> Iterator[None]:
    with directory(share.socket.parent), _removed(share.socket):
        process = _started(share, program)
        expected = threading.Event()
        watcher = threading.Thread(target=_watch, args=(share, process, expected, lost), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            expected.set()
            process.terminate()
            watcher.join(_ENDING)
            if watcher.is_alive():
                process.kill()
                watcher.join(_ENDING)


@contextmanager
def _removed(path: Path) -> Iterator[None]:
    """What is there afterwards goes."""
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _started(share: Share, program: str) -> subprocess.Popen[bytes]:
    """It listens when this returns: the socket is made here, and is its alone, so that nobody is left waiting at one
    whose program has ended."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _MOST_FILES if most == resource.RLIM_INFINITY else min(most, _MOST_FILES)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            share.socket.unlink(missing_ok=True)  # a killed launcher's
            listener.bind(str(share.socket))
            share.socket.chmod(0o600)
            listener.listen(1)
            command = [
                program,
                f"--fd={listener.fileno()}",
                f"--shared-dir={share.directory}",
                "--sandbox=none",
                "--cache=auto",
                f"--rlimit-nofile={files}",
                "--log-level=warn",
                *(["--readonly"] if share.read_only else []),
            ]
            # Not program.child's: it gives no answer, and serves as long as the VM lives.
            return subprocess.Popen(  # noqa: S603 (no shell; the manifest checks names and paths)
                command,
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={"PATH": os.defpath},
            )
    except FileNotFoundError as error:
        raise Refusal(program, "is not there, and serves the guest's file systems", "install virtiofsd") from error
    except OSError as error:
        what = f"virtiofsd cannot be started for the volume {share.name!r}: {error.strerror or error}"
        raise Refusal(share.socket, what, "expected a place for its socket, and room for one more process") from error


def _watch(
    share: Share, process: subprocess.Popen[bytes], expected: threading.Event, lost: Callable[[], object]
) -> None:
    """Log what it says until it ends, and tell of an end that nobody wanted."""
    assert process.stderr is not None, "it is a pipe"
    with process.stderr as stderr:
        for line in _lines(stderr):
            _log.info("virtiofsd of %s: %s", share.name, line)
    code = process.wait()
    if code == 0 or expected.is_set():
        return
    how = f"signal {signal.Signals(-code).name} has ended it" if code < 0 else f"it has ended with {code}"
    _log.error("the guest has lost the volume %s: virtiofsd is gone, %s", share.name, how)
    lost()


def _lines(stream: IO[bytes]) -> Iterator[str]:
    """What it says, line by line; the guest may make it say much, and long lines come in parts."""
    while line := stream.readline(_LONGEST):
        yield one_line(line.decode(errors="replace").rstrip("\n"))
