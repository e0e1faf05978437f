"""The kernel's notifications of changes: uevents for sysfs, inotify for directories.

Both are incomplete (a full queue drops events, a tree that is not /sys has none), so a listener also looks from time to
time.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from inotify_simple import INotify, flags

_log = logging.getLogger(__name__)

#: Subsystems whose events may change what is on offer.
_SUBSYSTEMS = (b"pci", b"vfio", b"vfio-dev", b"mdev")

_KERNEL = 1  # the multicast group of the kernel's own events; udev's are in another
_ENOUGH = 1 << 20  # bytes of buffer: a few thousand events
_NETLINK_KOBJECT_UEVENT = 15  # include/uapi/linux/netlink.h

#: Seconds from the first event of a burst in which all others belong to it: a burst is one change.
_GATHER = 0.0015


class Bell:
    """Wakes the one task that waits for it, once for all rings of a moment."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()

    async def rung(self) -> None:
        """Wait until the bell rings, and a moment longer for other rings of the same change."""
        await self._event.wait()
        await asyncio.sleep(_GATHER)
        self._event.clear()


@contextmanager
def uevents(changed: Callable[[], None]) -> Iterator[None]:
    """Call `changed` at the kernel's events about PCI functions, VFIO and mediated devices, until the block ends.

    OSError if the events cannot be received. They reach every network namespace of the initial user namespace, so also
    a pod without the host's network (Documentation/core-api/kobject).
    """
    # Not a library: libudev's Python would be a C library in the image for these few lines.
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, _NETLINK_KOBJECT_UEVENT) as events:
        events.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _ENOUGH)
        events.bind((0, _KERNEL))

        def read() -> None:
            concerns_us = False
            while True:
                try:
                    message, (sender, _) = events.recvfrom(1 << 13)
                except BlockingIOError:
                    break
                except OSError:
                    concerns_us = True  # the queue overflowed (ENOBUFS): anything may have changed
                    continue
                # Processes may send to the group, too; only the kernel's port is 0.
                if sender == 0 and is_about_devices(message):
                    concerns_us = True
            if concerns_us:
                changed()

        with _read_when_ready(events, read):
            yield


@contextmanager
def directories(paths: Sequence[Path], changed: Callable[[], None], *, written: bool = False) -> Iterator[None]:
    """Call `changed` whenever an entry comes or goes in one of these directories, until the block ends.

    A directory may also be made later. With `written`, call it when a file in one has been written, too.
    """
    try:
        inotify = INotify(nonblocking=True)
    except OSError as error:
        _log.warning(
            "changes of directories are seen only by the regular look, and a new config by SIGHUP: %s; "
            "raise the sysctl fs.inotify.max_user_instances",
            error.strerror,
        )
        inotify = None
    if inotify is None:
        yield
        return
    # A file that is being written is no news until it is closed.
    mask = flags.DELETE | flags.MOVED_TO | flags.MOVED_FROM | (flags.CLOSE_WRITE if written else flags.CREATE)

    def watch() -> None:
        for path in paths:
            # Where it does not exist yet, the nearest directory above it tells when that changes. Watching the same
            # directory again changes nothing; one that was removed and made anew is another.
            for directory in (path, *path.parents):
                try:
                    inotify.add_watch(directory, mask)
                except (FileNotFoundError, NotADirectoryError):
                    continue
                except OSError as error:
                    _log.warning("%s: changes are seen only by the regular look: %s", directory, error.strerror)
                break

    def read() -> None:
        if inotify.read(timeout=0):
            watch()
            changed()

    with inotify:
        watch()
        with _read_when_ready(inotify, read):
            yield


@contextmanager
def _read_when_ready(source: "socket.socket | INotify", read: Callable[[], None]) -> Iterator[None]:
    asyncio.get_running_loop().add_reader(source, read)
    try:
        yield
    finally:
        asyncio.get_running_loop().remove_reader(source)


def is_about_devices(message: bytes) -> bool:
    """True if a uevent (`bind@/devices/pci...\\0ACTION=bind\\0SUBSYSTEM=pci\\0...`) may change what VFIO has."""
    fields = message.split(b"\0")
    return any(b"SUBSYSTEM=" + subsystem in fields for subsystem in _SUBSYSTEMS)
