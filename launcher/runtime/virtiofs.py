"""virtiofsd, a child for each directory that the guest mounts, with the launcher's user and without a capability.

It has no sandbox of its own, which would need a capability: it sees only the container
(https://gitlab.com/virtio-fs/virtiofsd, "--sandbox"). When QEMU hangs up, it ends with 0. If it ends otherwise, the
guest has lost the file system for good.
"""

import logging
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from launcher.runtime.user import open_files
from launcher.vm import paths
from launcher.vm.volumes.media import Share
from launcher.vm.volumes.places import directory
from program.errors import Refusal
from program.problem import one_line

_log = logging.getLogger(__name__)

_MOST_FILES = 1_000_000  # virtiofsd's default; one is open for each file that the guest remembers
_LONGEST = 1000  # bytes of a line of its log
_ENDING = 3.0  # seconds to end by itself, since QEMU has hung up


@contextmanager
def serving_shares(
    shares: Iterable[Share], lost: Callable[[], object], program: str = paths.VIRTIOFSD
) -> Iterator[None]:
    """Serve each share to QEMU. `lost` is called, in a thread, when a virtiofsd ends before QEMU does. Raise Refusal if
    one cannot be started; none is left then.
    """
    with ExitStack() as stack:
        for share in shares:
            stack.enter_context(_served(share, lost, program))
        yield


def forget(shares: Iterable[Share]) -> None:
    """Remove the sockets that a killed launcher has left."""
    for share in shares:
        with suppress(OSError):
            share.socket.unlink()
            share.socket.parent.rmdir()


@contextmanager
def _served(share: Share, lost: Callable[[], object], program: str) -> Iterator[None]:
    with directory(share.socket.parent), ExitStack() as stack:
        stack.callback(share.socket.unlink, missing_ok=True)
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


def _started(share: Share, program: str) -> subprocess.Popen[bytes]:
    """Return a virtiofsd that listens. The socket is made here and only virtiofsd has it open: so no caller waits at
    the socket of a virtiofsd that has ended."""
    files = min(open_files() or _MOST_FILES, _MOST_FILES)
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
    """Log what virtiofsd prints, in lines of bounded length, and call `lost` if it ends and that is not `expected`."""
    assert process.stderr is not None, "it is a pipe"
    with process.stderr as stderr:
        while line := stderr.readline(_LONGEST):
            words = one_line(line.decode(errors="replace").rstrip("\n"))
            _log.info("virtiofsd of %s: %s", share.name, words)
    code = process.wait()
    if code == 0 or expected.is_set():
        return
    how = f"signal {signal.Signals(-code).name} has ended it" if code < 0 else f"it has ended with {code}"
    _log.error("the guest has lost the volume %s: virtiofsd is gone, %s", share.name, how)
    lost()
