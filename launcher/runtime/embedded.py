"""Libvirt without daemons: the QEMU driver inside this process, with a root directory of its own.

https://libvirt.org/drvqemu.html#embedded-driver
"""

import fcntl
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, urlsplit

from launcher import paths
from launcher.runtime.passt import look_here_first
from program.bootstrap import values_of
from program.errors import ProgramError, Refusal, UserError

#: A pod has one VM, so it has one root.
DEFAULT_URI = f"qemu:///embed?root={paths.LIBVIRT_ROOT}"

# Of QEMU, in libvirt's file of a domain that runs; and one that no process can have (the kernel's PID_MAX_LIMIT).
_NUMBER = re.compile(r"<domstatus [^>]*pid='(-?\d+)'")
_NOBODY = (1 << 22) + 1

_LOOKED_AT = 0.5  # seconds; whoever looks needs microseconds

# What a container cannot or need not have: virtlogd, security drivers, mount namespaces and cgroups of its own, and
# trusted extended attributes, in which libvirt would remember the owners of files. Whoever we are, QEMU is too.
_QEMU_CONF = """\
stdio_handler = "file"
user = "+{uid}"
group = "+{gid}"
security_driver = "none"
namespaces = []
cgroup_controllers = []
remember_owner = 0
"""
# The TPM's emulator, which Debian's libvirt would run as another user, who cannot look into a directory of ours; only
# root may name one.
_AS_ROOT = """\
swtpm_user = "+0"
swtpm_group = "+0"
"""
# The file system of huge pages, for which libvirt looks by itself only as root (virQEMUDriverConfigNew).
_WITH_HUGE_PAGES = f"""\
hugetlbfs_mount = "{paths.HUGEPAGES}"
"""


def is_embedded(uri: str) -> bool:
    """Whether QEMU would be this process's own, and not another libvirt's."""
    parts = _split(uri)
    return (parts.scheme, parts.path) == ("qemu", "/embed")


def has_qemu_here(uri: str) -> bool:
    """Whether QEMU would run on this machine, under whichever libvirt."""
    parts = _split(uri)
    return parts.scheme.partition("+")[0] == "qemu" and parts.hostname is None


def root_of(uri: str) -> Path | None:
    """The root directory of an embedded driver's URI; None for any other URI."""
    if not is_embedded(uri):
        return None
    roots = parse_qs(_split(uri).query).get("root", [])
    if len(roots) != 1 or not roots[0].startswith("/") or "\0" in roots[0]:
        raise UserError(f"--connect {uri}", "its root is no absolute path", f"expected one, like {DEFAULT_URI}")
    return Path(roots[0])


def asked_for(arguments: Sequence[str]) -> str:
    """The URI that `run` is asked for by --connect, where nothing is wrong with its arguments.

    Read here, before there is a command line's library in the process: that one is for a child, which checks it.
    """
    return [DEFAULT_URI, *values_of("--connect", arguments)][-1]


def is_taken(root: Path) -> bool:
    """Whether a launcher has its VM there now; not where there is no such place, or none that we may open."""
    try:
        place = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(place, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(place)
    return False


def forget_ready(arguments: Sequence[str]) -> None:
    """Take away what a launcher that was killed has left for the readiness probe, where `run` is called with these
    arguments: the pod is not ready from the first moment on. Where a launcher runs in that root, it is that one's."""
    with suppress(ProgramError, OSError):
        root = root_of(asked_for(arguments))
        if root is not None and not is_taken(root):
            (root / Path(paths.READY).name).unlink()


@contextmanager
def prepared(root: Path) -> Iterator[None]:
    """The root is ready for libvirt, and this launcher's alone within. What is in it stays, with libvirt's knowledge of
    QEMU, by which a launcher started again in the same place is quicker."""
    try:
        conf = root / "etc" / "qemu.conf"
        conf.parent.mkdir(parents=True, exist_ok=True)
        place = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _unusable(root, error) from error
    try:
        try:
            _lock(place)
        except BlockingIOError as error:
            raise Refusal(
                root,
                "another gpu-launcher has its VM there",
                "expected a directory for each, named with --connect 'qemu:///embed?root=DIR', or wait until that VM "
                "has ended",
            ) from error
        try:
            if not conf.exists():
                # One that is root's alone, as systemd mounts it, would keep libvirt from starting at all.
                huge_pages = Path(paths.HUGEPAGES).is_mount() and os.access(paths.HUGEPAGES, os.W_OK)
                _write(conf, qemu_conf(os.getuid(), os.getgid(), huge_pages=huge_pages))
            _forget_halves(root)
            _forget_the_numbers(root / "run" / "qemu")
        except OSError as error:
            raise _unusable(root, error) from error
        if os.getuid() != 0:
            # Libvirt has its places in a user's home, besides; and a container's user often has none.
            os.environ["HOME"] = str(root)
        look_here_first(root)
        yield
    finally:
        os.close(place)


def _forget_halves(root: Path) -> None:
    """Take away what libvirt was making when its process was killed, and will not know of: files that it was writing
    (virFileRewrite), the directories of a domain of which it had not written down yet that it starts, and those where
    it was asking a QEMU what it can (qemuProcessQMPNew)."""
    for place in ("etc/qemu", "run/qemu"):
        for half in (root / place).glob("*.xml.new"):
            half.unlink()
    known = [status.stem for status in (root / "run" / "qemu").glob("*.xml")]
    lost = [*(root / "lib/qemu").glob("qmp-*")]
    for above in ("lib/qemu", "lib/qemu/channel/target"):
        for directory in (root / above).glob("domain-*-*"):
            # domain-1-default_vm; of a long name, its beginning (virDomainDefGetShortName).
            name = directory.name.split("-", 2)[2]
            if not any(domain.startswith(name) for domain in known):
                lost.append(directory)
    if lost:
        import shutil  # not for the supervisor, which has this module and takes nothing away

        for directory in lost:
            shutil.rmtree(directory, ignore_errors=True)


def _forget_the_numbers(state: Path) -> None:
    """Have libvirt take a QEMU for gone that has not the number, or has none yet, in libvirt's files of it.

    In a container that starts again the number is another process's. Libvirt would end that: it looks neither at its
    program nor at its name (qemuProcessReconnect), and waits 44 s for one that it may not end. Where it was killed
    before it knew the number, it would wait 30 s for QEMU's monitor. What a QEMU that is gone has left it takes away.
    """
    for status in state.glob("*.xml"):
        text, of_qemu = status.read_text(), status.with_suffix(".pid")
        found = _NUMBER.search(text)
        if found is None:
            continue
        number = int(found[1])
        if number <= 0:
            try:
                number = int(of_qemu.read_text())  # QEMU has written it
            except (OSError, ValueError):
                number = _NOBODY
        if not _is_qemu(number, status.stem):
            number = _NOBODY
        if number != int(found[1]):
            status.write_text(f"{text[: found.start(1)]}{number}{text[found.end(1) :]}")
            of_qemu.write_text(f"{number}\n")


def _is_qemu(number: int, domain: str) -> bool:
    try:
        return f"guest={domain},".encode() in Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:
        return False


def _lock(place: int) -> None:
    """Lock it for this process alone; BlockingIOError where another one has it, for longer than is_taken() does."""
    deadline = time.monotonic() + _LOOKED_AT
    while True:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def qemu_conf(user: int, group: int, *, huge_pages: bool) -> str:
    """Libvirt's qemu.conf for a launcher of this user and group; `huge_pages`: whether they may write to them."""
    conf = _QEMU_CONF.format(uid=user, gid=group)
    if user == 0:
        return conf + _AS_ROOT
    return conf + _WITH_HUGE_PAGES if huge_pages else conf


def _write(path: Path, text: str) -> None:
    """All of it or nothing: a place may be full, and half a file would be taken for one that somebody wants so.

    QEMU, which is the same user, may not open it for writing.
    """
    half = path.with_suffix(".new")
    try:
        half.write_text(text)
        half.chmod(0o444)
        half.rename(path)
    except OSError:
        half.unlink(missing_ok=True)
        raise


def _unusable(root: Path, error: OSError) -> Refusal:
    return Refusal(
        root,
        f"cannot make the root of libvirt's embedded driver: {error.strerror}",
        "expected a directory that can be written, name one with --connect 'qemu:///embed?root=DIR'",
    )


def _split(uri: str) -> SplitResult:
    try:
        return urlsplit(uri)
    except ValueError as error:
        raise UserError(f"--connect {uri}", str(error), f"expected a URI like {DEFAULT_URI}") from error
