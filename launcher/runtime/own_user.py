"""The user as whom a VM runs on an own machine if root starts it: root only if the command line names root.

The launcher becomes the user before it reads the manifest. So libvirt, QEMU, passt, swtpm and qemu-img run as that user
too, with no capability and no way to get one. Files and devices that the command line names and the user may not open
are lent to the user in a mount namespace of this VM's own (docs/decisions/0011-own-machine.md): another node of a
device, and a file that looks as if it were the user's (mount_namespaces(7); idmapped mounts, mount_setattr(2)). The
machine's own files stay unchanged, and the mounts are gone once the last process of the namespace has ended.
"""

import ctypes
import os
import pwd
import signal
import stat
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from launcher.runtime.embedded import is_own_machine
from launcher.runtime.user import raise_limits
from launcher.vm.paths import RUN_OF_USERS, STATE_OF_USERS
from pci.address import InvalidPCIAddress, PCIAddress
from pci.cards import card_of, groups_of
from pci.sysfs.attribute import CannotLook
from pci.sysfs.functions import NotSysfs, read_host
from program.bootstrap import values_of
from program.child import forked
from program.errors import Refusal, UserError
from program.prctl import PR_SET_NO_NEW_PRIVS, prctl
from program.problem import Severity

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
    """Give this process a mount namespace of its own, which still gets later mounts of the machine. OSError if that
    fails."""
    _checked("unshare", _CLONE_NEWNS)
    _checked("mount", None, b"/", None, _MS_REC | _MS_SLAVE, None)


def lend_device(device: int, user: int, group: int) -> None:
    """Mount a new node of the device, which only the user may open, over the node that is open as `device` (O_PATH).
    OSError if the node cannot be made or mounted."""
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
    """Mount the file that is open as `file` (O_PATH) over itself, with the user as its owner. OSError if that fails:
    EINVAL if the file system does not support such mounts."""
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
    """Yield a descriptor of a user namespace that maps `owner` and `group` to the IDs of the user and of its group."""
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
    """Call a function of the C library; raise OSError with its errno if it fails."""
    call = getattr(ctypes.CDLL(None, use_errno=True), function)
    answer = int(call(*(ctypes.c_long(each) if isinstance(each, int) else each for each in arguments)))
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


def _called(number: int, *arguments: object) -> int:
    """Make a system call by its number; raise OSError if it fails."""
    return _checked("syscall", number, *arguments)


#: The users that distributions have for QEMU: Debian's and Ubuntu's, and Fedora's, which is 107 there.
_FOR_QEMU = ("libvirt-qemu", "qemu")
#: What stays of root's environment, in which there may be secrets.
_KEPT = ("PATH", "LANG", "LANGUAGE", "LC_", "TERM", "TZ", "NO_COLOR", "PYTHON", "LIBVIRT_")
_LOOKED_AT = 30.0  # seconds to find the nodes of cards in sysfs
_DEV = Path("/dev")

Say = Callable[[str, Severity], object]


def start_over(arguments: Sequence[str], say: Say) -> None:
    """Start this program anew as the VM's user, if this process is root and the arguments of `run` or `check` are those
    of a VM on an own machine. Otherwise return; if the arguments name root, with a warning.

    `say` gets a line about the user. Call this before there are threads. Raise UserError for a user that does not
    exist, Refusal if no user is known, or if the user needs a file that it cannot be lent.
    """
    if os.geteuid() != 0 or not is_own_machine(arguments):
        return
    user = user_of(arguments, os.environ)
    if user.pw_uid == 0:
        words = "a guest that takes over QEMU then has this whole machine; leave it out, or name another user"
        say(f"--user {user.pw_name}: QEMU runs as root: {words}", Severity.WARNING)
        return
    try:
        lent = _lent(arguments, user)
        environ = _environment(user, os.environ)
        raise_limits((*(["memlock"] if values_of("--gpu", arguments) else ()), *values_of("--raise", arguments)))
        have = f", who has {', '.join(map(str, lent))} until it ends" if lent else ""
        say(f"the VM runs as the user {user.pw_name}{have}; --user names another", Severity.NOTE)
        # No other group: membership in one, like docker, may be as good as root.
        os.setgroups([])
        os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
        os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
    except OSError as error:
        subject = error.filename or f"--user {user.pw_name}"
        fix = "expected all of root's rights; without them, as in a container, start the VM as that user"
        wrong = f"root cannot run the VM as {user.pw_name}: {error.strerror}"
        raise Refusal(subject, wrong, fix) from error
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    # Anew: nothing of root's memory and environment stays, and /proc/self is the user's.
    is_script = os.access(sys.argv[0], os.X_OK)
    command = sys.argv if is_script else [sys.executable, *sys.orig_argv[1:]]
    os.execve(command[0], command, environ)  # noqa: S606 (this program)


def user_of(arguments: Sequence[str], environ: Mapping[str, str]) -> pwd.struct_passwd:
    """Return the user that --user names, else the one who called sudo, else the distribution's user for QEMU."""
    if named := values_of("--user", arguments):
        return named_user(named[-1])
    if (sudo := environ.get("SUDO_UID", "0")) != "0":
        return _known(sudo, "SUDO_UID")
    for name in _FOR_QEMU:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise Refusal(
        "the VM's user",
        f"is not known: root starts this VM, without sudo, and has no user {' or '.join(_FOR_QEMU)}",
        "name one that has little else, --user NAME (sudo useradd --system --user-group qemu makes one), or root",
    )


def named_user(name: str) -> pwd.struct_passwd:
    """Return the user with this name or number; UserError if there is none."""
    return _known(name, "--user")


def _known(name: str, where: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(int(name)) if name.isascii() and name.isdecimal() else pwd.getpwnam(name)
    except (KeyError, OverflowError, ValueError):
        wrong = f"{name!r} is no user of this machine"
        raise UserError(where, wrong, "expected a name or a number that getent passwd has") from None


def _lent(arguments: Sequence[str], user: pwd.struct_passwd) -> tuple[Path, ...]:
    """Lend the user the files and devices that the arguments name and it may not open; return their paths."""
    sysfs = Path(["/sys", *values_of("--sysfs", arguments)][-1])
    kvm = [] if "--emulation" in arguments else [Path("/dev/kvm")]
    nodes = forked("the look at sysfs", partial(nodes_of, values_of("--gpu", arguments), sysfs), within=_LOOKED_AT)
    disks = [setting.partition("=")[2] for setting in values_of("--disk", arguments)]
    lent_by_flag = [Path(path).absolute() for path in values_of("--give", arguments)]
    named = [*kvm, *nodes.answer(), *(Path(path).absolute() for path in disks if path), *lent_by_flag]
    with _acting_as(user):
        _refuse_out_of_reach(user)
        lacked = [path for path in dict.fromkeys(named) if not _opens(path, os.R_OK | os.W_OK)]
        read = {path for path in lacked if _opens(path, os.R_OK)}
        closed = {path: _closed(path.parent) for path in lacked}
    lacked = [path for path in lacked if path.exists()]  # who reads the command line says what is missing
    if lacked:
        try:
            enter_own_namespace()
        except OSError as error:
            wrong = f"cannot be had, in which {user.pw_name} would be lent {lacked[0]}: {error.strerror}"
            fix = "start the VM outside of containers; or let that be the user's, and start the VM as that user"
            raise Refusal("a mount namespace", wrong, fix) from error
    lent = []
    for path in lacked:
        reason = f"is out of reach for the user {user.pw_name}, by {closed[path]}" if closed[path] else None
        reason = reason or lend(path, user)
        if reason is None:
            lent.append(path)
        elif path not in read or path in lent_by_flag:  # an image that nobody writes to has to be read alone
            fix = f"let it be {user.pw_name}'s, where that user may go, or name another user: --user NAME"
            raise Refusal(path, reason, fix)
    return tuple(lent)


def nodes_of(gpus: Sequence[str], sysfs: Path) -> tuple[Path, ...]:
    """Return VFIO's device nodes for these cards: of their IOMMU groups, and of each function there. Return () for
    anything but cards: the command line's check reports it."""
    if not gpus:
        return ()
    try:
        host = read_host(sysfs)
        functions = [each for text in gpus for each in card_of(host, PCIAddress.parse_short(text))]
    except (NotSysfs, CannotLook, InvalidPCIAddress):
        return ()
    groups = sorted(groups_of(functions))
    members = [host.functions.get(address) for group in groups for address in host.groups[group]]
    devices = [each.vfio_device for each in members if each is not None and each.vfio_device is not None]
    names = ("vfio/vfio", *(f"vfio/{group}" for group in groups if group not in host.noiommu))
    by_function = ("iommu", *(f"vfio/devices/{name}" for name in devices)) if devices else ()
    return tuple(_DEV / name for name in (*names, *by_function)) if groups else ()


def lend(path: Path, user: pwd.struct_passwd) -> str | None:
    """Lend the user a device below /dev or a file of root's, under its own name; return the reason if that fails."""
    # The links of /dev are root's, but for those in directories like /dev/shm.
    is_roots = path.is_relative_to(_DEV) and not any(above.stat().st_mode & 0o022 for above in path.parents)
    named = path.resolve() if is_roots else Path(os.path.normpath(path))
    try:
        file = os.open(named, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        return f"cannot be opened: {error.strerror}"
    try:
        status = os.fstat(file)
        if stat.S_ISLNK(status.st_mode) or Path(f"/proc/self/fd/{file}").readlink() != named:
            return f"is reached by a link, and is {path.resolve()}"
        if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            if not named.is_relative_to(_DEV):
                return "is a device outside of /dev"
            lend_device(file, user.pw_uid, user.pw_gid)
        elif not stat.S_ISREG(status.st_mode):
            return "is neither a file nor a device"
        elif status.st_uid != 0:
            return f"is neither root's nor {user.pw_name}'s"
        elif status.st_nlink != 1:
            return f"has {status.st_nlink} names (hard links)"
        else:
            lend_file(file, user.pw_uid, user.pw_gid, read_only=not status.st_mode & stat.S_IWUSR)
    except OSError as error:
        return f"cannot be lent to {user.pw_name} by a mount, as on this file system: {error.strerror}"
    finally:
        os.close(file)
    return None


@contextmanager
def _acting_as(user: pwd.struct_passwd) -> Iterator[None]:
    """Act with the user's rights inside the block, without capabilities."""
    groups, group = os.getgroups(), os.getegid()
    os.setgroups([])
    os.setegid(user.pw_gid)
    os.seteuid(user.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)


def _refuse_out_of_reach(user: pwd.struct_passwd) -> None:
    """Raise Refusal if the user may not read this program, as when it is in root's home."""
    for path in (Path(__file__), Path(sys.executable), *map(Path, sys.path)):
        if (closed := _closed(path)) is not None:
            fix = "put the program where everybody may read it, like /opt, or name its owner: --user NAME"
            raise Refusal(closed, f"is closed to the user {user.pw_name}, and has this program in it", fix)


def _opens(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=True)


def _closed(path: Path) -> Path | None:
    """Return the first directory above the path, or the path itself, that the effective user may not enter or read;
    None if it may do so for all."""
    for place in (*reversed(path.parents), path):
        if not _opens(place, os.X_OK if place.is_dir() else os.R_OK) and place.exists():
            return place
    return None


def _environment(user: pwd.struct_passwd, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the user's environment: with its own directories, those of `environ` that are the user's, or new ones."""
    kept = {name: value for name, value in environ.items() if name.startswith(_KEPT)}
    runtimes = (environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{user.pw_uid}")
    state = environ.get("XDG_STATE_HOME", "")
    if not _is_own(state, user):
        state = f"{user.pw_dir}/.local/state" if _is_own(user.pw_dir, user) else _made(STATE_OF_USERS, user)
    return {
        **kept,
        "HOME": user.pw_dir,
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
        "XDG_RUNTIME_DIR": next((each for each in runtimes if _is_own(each, user)), None) or _made(RUN_OF_USERS, user),
        "XDG_STATE_HOME": state,
    }


def _is_own(directory: str, user: pwd.struct_passwd) -> bool:
    try:
        return Path(directory).is_absolute() and Path(directory).stat().st_uid == user.pw_uid
    except OSError:
        return False


def _made(above: Path, user: pwd.struct_passwd) -> str:
    """Make a directory in `above` for the user, called by its number, unless it exists; return its path."""
    place = above / str(user.pw_uid)
    above.mkdir(mode=0o755, exist_ok=True)
    with suppress(FileExistsError):
        place.mkdir(mode=0o700)
        os.chown(place, user.pw_uid, user.pw_gid, follow_symlinks=False)
    return str(place)
