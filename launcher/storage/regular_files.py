"""Files that volumes bring. Whoever fills a volume may put a link, a device or a pipe where a file is expected."""

import os
import stat
from pathlib import Path

from program.errors import Refusal

_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


def regular_file(whose: str, path: Path, volume: Path) -> Path:
    """Return the file at `path` without links; `volume` is where its volume is mounted.

    Refusal, about `whose` file it is, where it is no regular file, or is outside of the volume: QEMU would open for the
    guest whatever a link leads to. Nothing is opened here.
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
