"""The user and the limits with which a VM runs: a launcher that starts as root gives that user files which only root
may open, and then becomes the user.

From then on the launcher, libvirt, QEMU and their children have no capability and can get none
(docs/decisions/0008-users-and-security-levels.md).
"""

import os
import resource
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from program.bootstrap import values_of
from program.errors import Refusal
from program.prctl import PR_SET_DUMPABLE, prctl

_DEV = Path("/dev")

#: What --raise takes: a resource, and its new soft and hard limit, for every process of the VM.
LIMITS = {
    "memlock": (resource.RLIMIT_MEMLOCK, resource.RLIM_INFINITY),
    "rtprio": (resource.RLIMIT_RTPRIO, 1),  # <vcpusched scheduler="fifo" priority="1">
}


@dataclass(frozen=True, slots=True)
class Handover:
    """A user, whose group has the same ID; the files to give to the user; and the names in LIMITS to raise."""

    user: int
    files: tuple[Path, ...] = ()
    limits: tuple[str, ...] = ()


def asked_for(arguments: Sequence[str]) -> Handover | None:
    """Return the handover that --user, --give and --raise in `run`'s arguments request; None without a numeric user.

    This process has no library that reads command lines; its child checks the arguments.
    """
    users, lent, limits = (values_of(flag, arguments) for flag in ("--user", "--give", "--raise"))
    if not users or not users[-1].isascii() or not users[-1].isdecimal():
        return None
    return Handover(int(users[-1]), tuple(map(Path, lent)), tuple(limits))


def switch_user(handover: Handover) -> None:
    """Give the files to the user, raise the limits, and become the user, unless this process is that user already.

    Missing files, and limits that cannot be raised, are passed over: launcher.pipeline.this_pod reports what the VM
    lacks. Raise Refusal if this process may not do the rest.
    """
    user = handover.user
    if os.geteuid() == user:
        return
    raise_limits(handover.limits)
    try:
        for path in handover.files:
            for file in _given(path):
                os.chown(file, user, user, follow_symlinks=False)
        # The groups that the kubelet gives for the sake of volumes stay; root's is not one of them.
        os.setgroups([group for group in os.getgroups() if group != 0])
        os.setgid(user)
        os.setuid(user)
    except OSError as error:
        is_file = error.filename is not None
        raise Refusal(
            error.filename if is_file else f"--user={user}",
            f"{f'cannot be given to user {user}' if is_file else 'cannot become that user'}: {error.strerror}",
            "give the container the capabilities CHOWN, SETGID and SETUID (securityContext.capabilities.add), or have "
            "it start as that user and leave --user out",
        ) from error
    # The /proc/self of a process that has changed its user belongs to root (proc(5)), and libvirt reads it.
    prctl(PR_SET_DUMPABLE, 1)


def raise_limits(names: Iterable[str]) -> None:
    """Raise these limits of LIMITS for this process, as far as it may; ignore other names."""
    for limit in names:
        if limit in LIMITS:
            number, value = LIMITS[limit]
            with suppress(ValueError, OSError):  # ValueError is Python's for EPERM
                resource.setrlimit(number, (value, value))


def switch_to_owner_of(path: Path) -> None:
    """If this process is root, become the owner of the file, if it exists: in a container root has no CAP_DAC_OVERRIDE,
    and may not open another user's files."""
    try:
        owner = path.lstat().st_uid  # a link would name another user's
    except OSError:
        return
    if os.geteuid() == 0 != owner:
        switch_user(Handover(owner))


def let_lock(needed: int) -> int | None:
    """Raise RLIMIT_MEMLOCK to `needed` bytes if it is lower; return how many may be locked now, None for no limit.

    To raise the hard limit takes CAP_SYS_RESOURCE (setrlimit(2)) outside of a user namespace. The capability's bit does
    not tell that, so this tries.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if hard != resource.RLIM_INFINITY and hard < needed:
        try:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (needed, needed))
        except (ValueError, OSError):  # ValueError is Python's for EPERM
            return hard
        return needed
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (needed, hard))
    return None if hard == resource.RLIM_INFINITY else hard


def open_files() -> int | None:
    """Return how many files a process of ours may have open; None for no limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else hard


def _given(path: Path) -> Iterator[Path]:
    """Yield the files to give: below /dev the path, if it exists, and all device nodes below it; elsewhere only an
    empty regular file, as the kubelet makes it for a hostDisk. The writer of a volume may be hostile: a file with
    content is not given."""
    try:
        status = path.lstat()
    except OSError:
        return
    if ".." in path.parts or not path.is_relative_to(_DEV):
        if stat.S_ISREG(status.st_mode) and not status.st_size:
            yield path
        return
    yield path
    for directory, _, files in os.walk(path):
        for file in files:
            node = Path(directory, file)
            if stat.S_ISCHR(node.lstat().st_mode):
                yield node
