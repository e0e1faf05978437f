"""The kernel's word that something changed: uevents for what is in sysfs, inotify for what is in a directory.

Neither can be relied upon alone (a full queue drops events, a tree that is not /sys has none), so whoever listens also
looks from time to time.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

from inotify_simple import INotify, flags

_log = logging.getLogger(__name__)

#: Subsystems whose events may change what is on offer.
_SUBSYSTEMS = (b"pci", b"vfio", b"vfio-dev", b"mdev")

_KERNEL = 1  # the multicast group of the kernel's own events; udev's are in another
_ENOUGH = 1 << 20  # bytes to hold while nobody reads: a few thousand events

#: A burst is one change: what comes within this time (seconds) of the first is seen together.
_GATHER = 0.0015


class Bell:
    """Rings when somebody hears of a change; one task waits for it, and is woken once for all rings of a moment."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()

    async def rung(self) -> None:
        """Wait until it rings, and a moment longer for what else rings with it."""
        await self._event.wait()
        await asyncio.sleep(_GATHER)
        self._event.clear()


class Uevents:
    """Listens to the kernel's events about PCI functions, VFIO and mediated devices (Documentation/core-api/kobject).

    They reach every network namespace of the initial user namespace, so a pod without the host's network too.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        # Not a library: libudev's Python would be a C library in the image for these few lines.
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, _NETLINK_KOBJECT_UEVENT
        )
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _ENOUGH)
        self._socket.bind((0, _KERNEL))
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def _read(self) -> None:
        concerns_us = False
        while True:
            try:
                message, (sender, _) = self._socket.recvfrom(1 << 13)
            except BlockingIOError:
                break
            except OSError:
                concerns_us = True  # the queue overflowed (ENOBUFS): anything may have changed
                continue
            # Processes may send to the group, too; only the kernel's port is 0.
            if sender == 0 and is_about_devices(message):
                concerns_us = True
        if concerns_us:
            self._changed()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()


class Directories:
    """Tells when an entry comes or goes in one of these directories, or in one that is made later; with `written`, also
    when somebody has written a file in it."""

    def __init__(self, paths: Iterable[Path], changed: Callable[[], None], *, written: bool = False) -> None:
        self._paths = tuple(paths)
        self._changed = changed
        self._mask = flags.DELETE | flags.MOVED_TO | flags.MOVED_FROM
        # A file that is being written is no news until it is closed.
        self._mask |= flags.CLOSE_WRITE if written else flags.CREATE
        self._inotify = _inotify()
        if self._inotify is None:
            return
        self._watch()
        asyncio.get_running_loop().add_reader(self._inotify, self._read)

    def _watch(self) -> None:
        assert self._inotify is not None
        for path in self._paths:
            # Where it does not exist yet, the nearest directory above it tells when that changes. Watching the same
            # directory again changes nothing; one that was removed and made anew is another.
            for directory in (path, *path.parents):
                try:
                    self._inotify.add_watch(directory, self._mask)
                    break
                except (FileNotFoundError, NotADirectoryError):
                    continue
                except OSError as error:
                    _log.warning("%s: changes are seen only by the regular look: %s", directory, error.strerror)
                    break

    def _read(self) -> None:
        assert self._inotify is not None
        if self._inotify.read(timeout=0):
            self._watch()
            self._changed()

    def close(self) -> None:
        if self._inotify is not None:
            asyncio.get_running_loop().remove_reader(self._inotify)
            self._inotify.close()


def _inotify() -> INotify | None:
    """Return an inotify instance; None if the node has no more of them, so that only the regular look is left."""
    try:
        return INotify(nonblocking=True)
    except OSError as error:
        _log.warning(
            "changes of directories are seen only by the regular look, and a new config by SIGHUP: %s; "
            "raise the sysctl fs.inotify.max_user_instances",
            error.strerror,
        )
        return None


def is_about_devices(message: bytes) -> bool:
    """Whether a uevent (`bind@/devices/pci...\\0ACTION=bind\\0SUBSYSTEM=pci\\0...`) is about something that VFIO has or
    might have."""
    fields = message.split(b"\0")
    return any(b"SUBSYSTEM=" + subsystem in fields for subsystem in _SUBSYSTEMS)


_NETLINK_KOBJECT_UEVENT = 15  # include/uapi/linux/netlink.h
