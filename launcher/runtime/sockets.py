"""The directory of the sockets on which QEMU serves the guest's console and screen: libvirt makes none."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from program.errors import Refusal


@contextmanager
def socket_directory(directory: Path) -> Iterator[None]:
    """The directory is there within; afterwards its sockets are not, nor is what was made here above it.

    It is the VM's alone, so it goes too when nothing else is in it, whoever made it: a launcher that was killed leaves
    one. Refusal where it cannot be made.
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
