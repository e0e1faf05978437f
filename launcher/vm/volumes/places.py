"""Files and directories that are made for one VM: complete from their first moment, never in place of a guest's data,
and removed when nobody needs them. And files that volumes bring: of any volume, and all files of a config map, a secret
and the like, as the kubelet mounts them.

A file is made under another name in its directory, readable for its owner alone, and renamed when it is complete.
Whoever writes a volume may put a link, a device or a pipe where a file is expected.
"""

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from errno import EACCES, EDQUOT, EEXIST, EFBIG, EISDIR, ENOSPC, ENOTDIR, ENOTEMPTY, EPERM, EROFS
from pathlib import Path
from tempfile import mkstemp

from program.errors import Refusal

Fill = Callable[[Path], None]

_UNFINISHED = ".unfinished-"
#: Bytes of the largest block of a disk (4Kn), and of tmpfs: without the page's cache (`cache="none"`) QEMU writes whole
#: blocks only, and takes no raw image of another size ("Image size is not a multiple of request alignment").
_BLOCK = 4096
_FIXES = {
    **dict.fromkeys((ENOSPC, EDQUOT, EFBIG), "make room in its volume, or raise the volume's size or sizeLimit"),
    **dict.fromkeys((EROFS, EACCES, EPERM), "expected a volume that this process can write, as an emptyDir is"),
    **dict.fromkeys((EEXIST, EISDIR, ENOTDIR, ENOTEMPTY), "something else is in the way there; take it away"),
}


@contextmanager
def directory(path: Path) -> Iterator[None]:
    """Make the directory and those above it; afterwards remove the ones that were made here and are empty."""
    made = [parent for parent in (path, *path.parents) if not os.path.lexists(parent)]
    try:
        with _made(path):
            path.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        with suppress(OSError):
            for parent in made:
                parent.rmdir()


@contextmanager
def renewed(path: Path, fill: Fill) -> Iterator[None]:
    """Make a file for this start, in place of one that an earlier start has left; remove it afterwards."""
    with directory(path.parent):
        with _made(path), _unfinished(path) as file:
            fill(file)
            file.replace(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def keeping_file(path: Path, fill: Fill) -> Iterator[None]:
    """Make a file that the guest will write, unless it exists.

    Afterwards it stays, for the next start in the same pod; if it was made here and not written to, it is removed.
    """
    with directory(path.parent):
        fresh = None if os.path.lexists(path) else _make(path, fill)
        try:
            yield
        finally:
            if fresh is not None and _state(path) == fresh:
                path.unlink(missing_ok=True)


def whole_blocks(size: int) -> int:
    """Return the size of a raw image that holds at least `size` bytes, in whole blocks, so that it fits on any disk."""
    return -(-size // _BLOCK) * _BLOCK


def sized(path: Path, size: int) -> None:
    """Make a sparse file of that many bytes, which is never removed. A file that is not empty stays as it is."""
    with _made(path):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            # Without O_NONBLOCK the opening of a pipe would wait for its reader.
            descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            ours = False
        else:
            ours = True
        try:
            status = os.fstat(descriptor)
            if status.st_size == 0 and stat.S_ISREG(status.st_mode):
                os.ftruncate(descriptor, size)
                if status.st_uid == os.geteuid():
                    os.fchmod(descriptor, 0o600)  # the kubelet makes it readable for everybody
        except OSError:
            if ours:
                path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)


@contextmanager
def link(path: Path, target: Path) -> Iterator[None]:
    """Make a symbolic link, in place of one that an earlier start has left; remove it afterwards."""
    with directory(path.parent):
        with _made(path):
            if path.is_symlink():
                path.unlink()
            path.symlink_to(target)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _make(path: Path, fill: Fill) -> tuple[int, int, int]:
    """Make the file and return its state. If two launchers share the place, the first one makes the file."""
    with _made(path), _unfinished(path) as file:
        fill(file)
        state = _state(file)
        # Not a renaming, which would replace what has got there in the meantime.
        os.link(file, path)
    assert state is not None, "it was linked"
    return state


def _state(path: Path) -> tuple[int, int, int] | None:
    """Return the file's inode, size and time: they change if another file takes its place, or if it is written to."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


@contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    descriptor, name = mkstemp(prefix=_UNFINISHED, dir=path.parent)  # of mode 0600
    os.close(descriptor)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


@contextmanager
def _made(path: Path) -> Iterator[None]:
    """Turn an error of the file system into a Refusal that names the place and the fix."""
    try:
        yield
    except OSError as error:
        fix = _FIXES.get(error.errno or 0, "the pod's volumes and the node's log say more")
        raise Refusal(path, f"cannot be made: {error.strerror}", fix) from error


_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFLNK: "a link"}
_MOST_FILES = 1000  # of a VM's firmware and TPM, which have some ten
#: The kubelet's link to the files as they are, which it turns to others all at once (pkg/volume/util/atomic_writer.go).
_DATA = "..data"


def regular_file(whose: str, path: Path, volume: Path) -> Path:
    """Return the path of a file with all links resolved, without opening it; `volume` is where its volume is mounted.

    Raise Refusal, about `whose` file it is, if it is no regular file or is outside the volume: QEMU would open for the
    guest whatever a link leads to.
    """
    try:
        file = Path(os.path.realpath(path, strict=True))
        kind = stat.S_IFMT(file.lstat().st_mode)
    except OSError as error:
        fix = f"expected a regular file in {volume}"
        raise Refusal(whose, f"{path} cannot be found: {error.strerror}", fix) from error
    if not file.is_relative_to(os.path.realpath(volume)):
        raise Refusal(whose, f"{path} leads out of its volume, to {file}", "expected the file itself, and no link")
    if kind != stat.S_IFREG:
        raise Refusal(whose, f"{path} is {_KINDS.get(kind, 'a device')}", "expected a regular file")
    return file


def refuse_all_but_files(whose: str, directory: Path) -> None:
    """Raise Refusal, about `whose` files they are, if there is anything below the directory but regular files and
    directories, or too much: a program that keeps its state there would follow a link, and wait for a pipe's reader.
    A directory that is not there has nothing in it."""
    ahead, left = [directory] if directory.exists() else [], _MOST_FILES
    while ahead:
        try:
            with os.scandir(ahead.pop()) as entries:
                for entry in entries:
                    left -= 1
                    kind = stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)
                    if left < 0:
                        raise Refusal(
                            whose, f"{directory} has more than {_MOST_FILES} files", "take away what is no VM's"
                        )
                    if kind == stat.S_IFDIR:
                        ahead.append(Path(entry.path))
                    elif kind != stat.S_IFREG:
                        wrong = f"{entry.path} is {_KINDS.get(kind, 'a device')}"
                        raise Refusal(whose, wrong, "expected regular files alone, take it away")
        except OSError as error:
            raise Refusal(
                whose, f"{directory} cannot be read: {error.strerror}", "let its owner be this user"
            ) from error


def mounted_files(volume: str, directory: Path) -> Mapping[str, bytes]:
    """Return the content of each file below the directory, by its path there. All files are of one version, even if
    the kubelet replaces them meanwhile.

    Raise Refusal, about the volume of this name, if the directory cannot be read or a file leads out of it.
    """
    whose = f"the volume {volume!r}"
    try:
        data = directory / _DATA
        version = data.resolve(strict=True) if data.is_symlink() else directory.resolve(strict=True)
        files = sorted(path for path in version.rglob("*") if path.is_file() or path.is_symlink())
        return {str(path.relative_to(version)): regular_file(whose, path, directory).read_bytes() for path in files}
    except OSError as error:
        fix = f"expected the pod to mount it at {directory}"
        raise Refusal(whose, f"cannot be read: {error.strerror}", fix) from error
