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
from urllib.parse import SplitResult, parse_qs, quote, urlsplit

from launcher.vm import paths
from program.bootstrap import values_of
from program.errors import ProgramError, Refusal, UserError

#: A pod has one VM, so it has one root.
DEFAULT_URI = f"qemu:///embed?root={paths.LIBVIRT_ROOT}"

#: The flags of `run` with which a VM is on its user's own machine, and libvirt's root is by the VM.
OWN_MACHINE = ("--gpu", "--disk", "--port")

_PROGRAMS = "bin"  # the directory below a root with the programs that libvirt calls in place of the system's
# QEMU's process ID in libvirt's file of a running domain; and one that no process has (the kernel's PID_MAX_LIMIT).
_NUMBER = re.compile(r"<domstatus [^>]*pid='(-?\d+)'")
_NOBODY = (1 << 22) + 1

_LOOKED_AT = 0.5  # seconds that is_taken(), which needs microseconds, may hold the lock

# What a container cannot or need not have: virtlogd, security drivers, mount namespaces and cgroups of its own, and
# trusted extended attributes, in which libvirt would remember the owners of files. QEMU runs as the launcher's user.
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


def has_qemu_here(uri: str) -> bool:
    """Return whether QEMU runs on this machine, in this process's libvirt or another."""
    parts = _split(uri)
    return parts.scheme.partition("+")[0] == "qemu" and parts.hostname is None


def root_of(uri: str) -> Path | None:
    """Return the root directory that a URI gives the embedded driver; None if the URI is another libvirt's."""
    parts = _split(uri)
    if (parts.scheme, parts.path) != ("qemu", "/embed"):
        return None
    roots = parse_qs(parts.query).get("root", [])
    if len(roots) != 1 or not roots[0].startswith("/") or "\0" in roots[0]:
        raise UserError(f"--connect {uri}", "its root is no absolute path", f"expected one, like {DEFAULT_URI}")
    return Path(roots[0])


def uri_of(root: Path) -> str:
    """Return the URI of the embedded driver with that root."""
    return f"qemu:///embed?root={quote(str(root))}"


def is_own_machine(arguments: Sequence[str]) -> bool:
    """Return whether a command's arguments have a flag that only a VM on the user's own machine has."""
    return any(values_of(flag, arguments) for flag in OWN_MACHINE)


def asked_for(arguments: Sequence[str]) -> str:
    """Return the URI in `run`'s arguments; "" on an own machine, where it follows from the VM. This process has no
    library that reads command lines: its child checks the arguments.
    """
    if is_own_machine(arguments):
        return ""
    return [DEFAULT_URI, *values_of("--connect", arguments)][-1]


def is_taken(root: Path) -> bool:
    """Return whether a launcher has its VM in this root now; False if the root does not exist or cannot be opened."""
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
    """Remove the readiness probe's file that a killed launcher has left in the root that `run`'s arguments name, unless
    another launcher runs there: a starting pod is not ready."""
    with suppress(ProgramError, OSError):
        root = root_of(asked_for(arguments))
        if root is not None and not is_taken(root):
            (root / Path(paths.READY).name).unlink()


@contextmanager
def prepared(root: Path) -> Iterator[None]:
    """Make the root ready for libvirt, and lock it for this launcher.

    The root keeps libvirt's cache of what QEMU can do, which makes the next start quicker.
    """
    try:
        conf = root / "etc" / "qemu.conf"
        conf.parent.mkdir(parents=True, exist_ok=True)
        place = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _unusable(root, error) from error
    try:
        try:
            lock(place, _LOOKED_AT)
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
        # libvirt looks up there what it calls. Before it has a thread: the environment is read without a lock.
        directories = os.environ.get("PATH", os.defpath).split(os.pathsep)
        if directories[0] != str(root / _PROGRAMS):
            os.environ["PATH"] = os.pathsep.join((str(root / _PROGRAMS), *directories))
        yield
    finally:
        os.close(place)


@contextmanager
def called_for_passt(root: Path, script: str) -> Iterator[None]:
    """Have libvirt's embedded driver in `root` call this script, a program's text, for passt."""
    program = root / _PROGRAMS / "passt"
    try:
        program.parent.mkdir(exist_ok=True)
        program.unlink(missing_ok=True)
        program.write_text(script)
        program.chmod(0o700)
    except OSError as error:
        raise Refusal(
            program,
            f"cannot be written: {error.strerror}",
            "expected a directory that can be written, name one with --connect",
        ) from error
    try:
        yield
    finally:
        program.unlink(missing_ok=True)


def _forget_halves(root: Path) -> None:
    """Remove what a killed process's libvirt left unfinished, and does not know of: half-written files
    (virFileRewrite), directories of a domain that has no status file yet, and those for asking QEMU its capabilities
    (qemuProcessQMPNew)."""
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
    """Mark a QEMU as gone in libvirt's files of it if the process ID there is another process's, or was never written.

    When a container starts again, another process has that ID. libvirt would end that process: it checks neither the
    program nor its name (qemuProcessReconnect), and waits 44 s for one that it may not end. If libvirt was killed
    before it knew the ID, it would wait 30 s for QEMU's monitor. What QEMU has left, libvirt removes itself.
    """
    for status in state.glob("*.xml"):
        text, of_qemu = status.read_text(), status.with_suffix(".pid")
        match = _NUMBER.search(text)
        if match is None:
            continue
        number = int(match[1])
        if number <= 0:
            try:
                number = int(of_qemu.read_text())  # written by QEMU
            except (OSError, ValueError):
                number = _NOBODY
        if not _is_qemu(number, status.stem):
            number = _NOBODY
        if number != int(match[1]):
            status.write_text(f"{text[: match.start(1)]}{number}{text[match.end(1) :]}")
            of_qemu.write_text(f"{number}\n")


def _is_qemu(number: int, domain: str) -> bool:
    try:
        return f"guest={domain},".encode() in Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:
        return False


def lock(place: int, seconds: float) -> None:
    """Lock an open directory for this process; BlockingIOError if another process holds it after so many `seconds`."""
    deadline = time.monotonic() + seconds
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
    """Return libvirt's qemu.conf for a launcher of this user and group; `huge_pages`: whether they may be used."""
    conf = _QEMU_CONF.format(uid=user, gid=group)
    if user == 0:
        return conf + _AS_ROOT
    return conf + _WITH_HUGE_PAGES if huge_pages else conf


def _write(path: Path, text: str) -> None:
    """Write the whole file or none: libvirt would read half a file, left by a full disk, as a configuration. The file
    is read-only, since QEMU runs as the same user.
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
