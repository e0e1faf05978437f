"""The pod's files while the guest runs: the directory of the sockets on which QEMU serves the guest's console and
screen, which libvirt does not make; and the file that the readiness probe looks for. While the guest starts or is
paused that file is missing: a paused guest answers nobody.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from launcher.vm.paths import READY
from program.errors import Refusal

_log = logging.getLogger(__name__)

_NAME = Path(READY).name


@contextmanager
def readiness(root: Path) -> Iterator[Callable[[bool], None]]:
    """Yield a function that makes the probe's file in the driver's root if the guest runs (True), else removes it."""
    file = root / _NAME

    def say(runs: bool) -> None:
        try:
            if runs:
                file.touch()
            else:
                file.unlink(missing_ok=True)
        except OSError as error:  # no reason to end a guest
            _log.error("%s: cannot say there whether the guest runs: %s", file, error.strerror)

    say(False)  # a launcher that was killed may have left it
    try:
        yield say
    finally:
        say(False)


@contextmanager
def socket_directory(directory: Path) -> Iterator[None]:
    """Make the directory; afterwards remove its sockets, it, and the directories above that this call made.

    Only this VM uses the directory, so it is removed if it is empty, even if a killed launcher made it. Raise Refusal
    if it cannot be made.
    """
    missing = [path for path in directory.parents if not path.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        above = missing[-1].parent if missing else directory.parent
        raise Refusal(
            directory,
            f"cannot make the directory for the sockets of the guest's console and screen: {error.strerror}",
            f"expected {above} to be a directory that can be written, as a volume of the pod's is",
        ) from error
    try:
        yield
    finally:
        # QEMU removes its sockets, unless it is killed. A log of the console stays.
        with suppress(OSError):
            for path in directory.iterdir():
                if path.is_socket():
                    path.unlink(missing_ok=True)
            for path in (directory, *missing):
                path.rmdir()
