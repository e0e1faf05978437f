"""As whom a VM runs: a container that starts as root hands over what only root may open, and is a user from then on.

The launcher, libvirt, QEMU and all that they start then have no capability and can get none (docs/decisions/0026).
"""

import os
import resource
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from program.bootstrap import values_of
from program.errors import Refusal
from program.prctl import PR_SET_DUMPABLE, prctl

_DEV = Path("/dev")

#: What --raise takes: to which soft and hard limit, for every process of the VM's.
LIMITS = {
    "memlock": (resource.RLIMIT_MEMLOCK, resource.RLIM_INFINITY),
    "rtprio": (resource.RLIMIT_RTPRIO, 1),  # <vcpusched scheduler="fifo" priority="1">
}


@dataclass(frozen=True, slots=True)
class Handover:
    """The user, whose group has the same number; what is to belong to it; and the limits, of LIMITS, to raise."""

    user: int
    given: tuple[Path, ...] = ()
    limits: tuple[str, ...] = ()


def asked_for(arguments: Sequence[str]) -> Handover | None:
    """What `run` is asked for by --user, --give and --raise; None without a user, or where that is no number.

    Read here, before there is a command line's library in the process: that one is for a child, which checks them.
    """
    users, given, limits = (values_of(flag, arguments) for flag in ("--user", "--give", "--raise"))
    if not users or not users[-1].isascii() or not users[-1].isdecimal():
        return None
    return Handover(int(users[-1]), tuple(map(Path, given)), tuple(limits))


def become(handover: Handover) -> None:
    """Hand over, and be the user from now on; nothing where that is so already.

    What is not there is not handed over: launcher.pipeline.this_pod says what the VM lacks. A limit that cannot be raised
    stays, for the same reason. Refusal where this process may not do the rest.
    """
    user = handover.user
    if os.geteuid() == user:
        return
    for limit in handover.limits:
        if limit in LIMITS:
            _raise(*LIMITS[limit])
    try:
        for path in handover.given:
            for file in _given(path):
                os.chown(file, user, user, follow_symlinks=False)
        # The groups that the kubelet gives for the sake of volumes stay; root's is not one of them.
        os.setgroups([group for group in os.getgroups() if group != 0])
        os.setgid(user)
        os.setuid(user)
    except OSError as error:
        given = error.filename is not None
        raise Refusal(
            error.filename if given else f"--user={user}",
            f"{f'cannot be given to user {user}' if given else 'cannot become that user'}: {error.strerror}",
            "give the container the capabilities CHOWN, SETGID and SETUID (securityContext.capabilities.add), or have "
            "it start as that user and leave --user out",
        ) from error
    # Whoever has changed its user has a /proc/self that is root's (proc(5)), and libvirt looks there.
    prctl(PR_SET_DUMPABLE, 1)


def become_owner_of(path: Path) -> None:
    """As root be the user whom the file belongs to, if it is there: root without CAP_DAC_OVERRIDE, as in a container,
    may not open what is another user's."""
    try:
        owner = path.stat().st_uid
    except OSError:
        return
    if os.geteuid() == 0 != owner:
        become(Handover(owner))


def _raise(limit: int, value: int) -> None:
    try:
        resource.setrlimit(limit, (value, value))
    except (ValueError, OSError):  # ValueError is Python's for EPERM
        return


def _given(path: Path) -> Iterator[Path]:
    """Below /dev the path, if it is there, and all device nodes below it. Anywhere else a regular file alone: a volume
    may have been filled by somebody who would like to be given more."""
    try:
        kind = path.lstat().st_mode
    except OSError:
        return
    if ".." in path.parts or not path.is_relative_to(_DEV):
        if stat.S_ISREG(kind):
            yield path
        return
    yield path
    for directory, _, files in os.walk(path):
        for file in files:
            node = Path(directory, file)
            if stat.S_ISCHR(node.lstat().st_mode):
                yield node
