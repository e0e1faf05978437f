"""Images in QEMU's format: what is in the header of one, and new ones, which qemu-img makes.

The header: QEMU's docs/interop/qcow2.txt.
"""

import os
import struct
from pathlib import Path
from typing import Literal

from launcher.storage.programs import output
from program.errors import Refusal

MAGIC = b"QFI\xfb"

#: The magic, the version, where the backing file's name is, and the incompatible features, there from version 3 on.
_HEADER = struct.Struct(">4sIQ56xQ")
_DATA_FILE = 1 << 2
_SECTOR = 512  # of raw images, for QEMU


def is_qcow2(image: Path) -> bool | None:
    """Return whether a file begins as qcow2 images do; None if it cannot be read."""
    try:
        with image.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return None


def refuse_unfit(what: str, image: Path) -> None:
    """Raise Refusal, about `what`, for a file that is no disk image, and for a qcow2 image that names another file:
    QEMU would open that one, and the guest read it.

    A file that is not qcow2 is a raw image, which has whole sectors.
    """
    try:
        with image.open("rb") as file:
            header = file.read(_HEADER.size)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise Refusal(what, f"cannot read {image}: {error.strerror}", "expected a disk image") from error
    if not header.startswith(MAGIC):
        if not size or size % _SECTOR:
            fix = f"expected a disk image, qcow2 or raw with sectors of {_SECTOR}"
            raise Refusal(what, f"{image} has {size} bytes", fix)
        return
    if len(header) < _HEADER.size:
        fix = "expected a whole qcow2 image, copy it again"
        raise Refusal(what, f"{image} is {len(header)} bytes long", fix)
    _, version, backing, features = _HEADER.unpack(header)
    for named, kind in ((backing, "backing"), (version >= 3 and features & _DATA_FILE, "data")):
        if named:
            fix = "expected one image alone, as qemu-img convert makes it"
            raise Refusal(what, f"{image} has a {kind} file", fix)


def make_empty(path: Path, size: int) -> None:
    """Make an existing file an empty image of `size` bytes."""
    output(("qemu-img", "create", "-q", "-f", "qcow2", path, str(size)), package="qemu-utils")


def make_overlay(path: Path, below: Path, kind: Literal["raw", "qcow2"]) -> None:
    """Make an existing file an image with the content of `below`, which stays as it is."""
    output(("qemu-img", "create", "-q", "-f", "qcow2", "-b", below, "-F", kind, path), package="qemu-utils")
