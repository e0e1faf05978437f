"""Files that a user has in a mount namespace of this process's own alone: another node of a device, and a file that
looks as if it were the user's (mount_namespaces(7); idmapped mounts, mount_setattr(2)).

The files themselves stay as they are, and all of it is gone once the last process of the namespace has ended.
"""

import ctypes
import os
import signal
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from program.child import forked

# linux/sched.h, linux/mount.h, linux/fcntl.h
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_NOSUID, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_SLAVE = 0x2, 0x8, 0x1000, 0x4000, 0x80000
_MNT_DETACH = 2
_OPEN_TREE_CLONE, _AT_EMPTY_PATH = 0x1, 0x1000
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_IDMAP = 0x1, 0x100000
_MOVE_MOUNT_EMPTY_PATHS = 0x4 | 0x40  # F_ and T_: from a descriptor to a descriptor
# The same on every architecture (since Linux 5.2, and 5.12): glibc has functions for them since 2.36.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442


def enter_own_namespace() -> None:
    """Have a mount namespace of this process's own, which still gets the mounts that others make. OSError if not."""
    _checked("unshare", _CLONE_NEWNS)
    _checked("mount", None, b"/", None, _MS_REC | _MS_SLAVE, None)


def lend_device(device: int, user: int, group: int) -> None:
    """Put another node of a device, which belongs to the user alone, over the one that is open as `device` (O_PATH).
    OSError if it cannot be made or mounted."""
    status = os.fstat(device)
    with TemporaryDirectory() as place:
        _checked("mount", b"tmpfs", place.encode(), b"tmpfs", _MS_NOSUID | _MS_NOEXEC, b"mode=700")
        try:
            node = Path(place, "node")
            os.mknod(node, stat.S_IFMT(status.st_mode) | 0o600, status.st_rdev)
            os.chown(node, user, group)
            _checked("mount", bytes(node), f"/proc/self/fd/{device}".encode(), None, _MS_BIND, None)
        finally:
            _checked("umount2", place.encode(), _MNT_DETACH)


def lend_file(file: int, user: int, group: int, *, read_only: bool) -> None:
    """Put a mount of the file that is open as `file` (O_PATH) over it, in which its owner is the user. OSError if not:
    EINVAL if its file system cannot have such mounts."""
    status = os.fstat(file)
    with _mapping(status.st_uid, user, status.st_gid, group) as namespace:
        tree = _called(_OPEN_TREE, file, b"", _OPEN_TREE_CLONE | _AT_EMPTY_PATH | os.O_CLOEXEC)
        try:
            # struct mount_attr: attr_set, attr_clr, propagation, userns_fd
            settings = _MOUNT_ATTR_IDMAP | (_MOUNT_ATTR_RDONLY if read_only else 0)
            attributes = struct.pack("=4Q", settings, 0, 0, namespace)
            _called(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, attributes, len(attributes))
            _called(_MOVE_MOUNT, tree, b"", file, b"", _MOVE_MOUNT_EMPTY_PATHS)
        finally:
            os.close(tree)


@contextmanager
def _mapping(owner: int, user: int, group: int, users_group: int) -> Iterator[int]:
    """A user namespace, as a descriptor, in which `owner` and `group` are the IDs of the user and of its group."""
    is_made, made = os.pipe()

    def make() -> None:
        _checked("unshare", _CLONE_NEWUSER)
        os.write(made, b".")
        signal.pause()

    child = forked("a user namespace", make)
    os.close(made)
    try:
        if not os.read(is_made, 1):
            child.answer()  # which raises the reason
        process = Path("/proc", str(child.pid))
        (process / "uid_map").write_text(f"{owner} {user} 1")
        (process / "gid_map").write_text(f"{group} {users_group} 1")
        namespace = os.open(process / "ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(is_made)
        child.end()
    try:
        yield namespace
    finally:
        os.close(namespace)


def _checked(function: str, *arguments: object) -> int:
    """Call a function of the C library, or OSError with its errno."""
    call = getattr(ctypes.CDLL(None, use_errno=True), function)
    answer = int(call(*(ctypes.c_long(each) if isinstance(each, int) else each for each in arguments)))
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


def _called(number: int, *arguments: object) -> int:
    """Call the kernel by the call's number, or OSError."""
    return _checked("syscall", number, *arguments)
