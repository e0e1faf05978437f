"""Files that volumes bring: of any volume, and all files of a config map, a secret and the like, as the kubelet mounts
them. Whoever writes a volume may put a link, a device or a pipe where a file is expected.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from program.errors import Refusal

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
        there = data.resolve(strict=True) if data.is_symlink() else directory.resolve(strict=True)
        files = sorted(path for path in there.rglob("*") if path.is_file() or path.is_symlink())
        return {str(path.relative_to(there)): regular_file(whose, path, directory).read_bytes() for path in files}
    except OSError as error:
        fix = f"expected the pod to mount it at {directory}"
        raise Refusal(whose, f"cannot be read: {error.strerror}", fix) from error
