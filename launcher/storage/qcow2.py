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

_VERSION = struct.Struct(">4sI")
_BACKING_FILE = struct.Struct(">8xQ")
_INCOMPATIBLE = struct.Struct(">72xQ")  # there from version 3 on
_DATA_FILE = 1 << 2
_SECTOR = 512  # of raw images, for QEMU


def is_qcow2(image: Path) -> bool:
    """OSError where it cannot be read."""
    with image.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def refuse_unfit(what: str, image: Path) -> None:
    """Refusal of what is no image, and of one that names another file: QEMU would open it, and the guest read it.

    What is not qcow2 is raw, of whole sectors, and names none. `what` is whose image it is, for the error.
    """
    try:
        with image.open("rb") as file:
            header = file.read(_INCOMPATIBLE.size)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise Refusal(what, f"cannot read {image}: {error.strerror}", "expected a disk image") from error
    if not header.startswith(MAGIC):
        if not size or size % _SECTOR:
            fix = f"expected a disk image, qcow2 or raw with sectors of {_SECTOR}"
            raise Refusal(what, f"{image} has {size} bytes", fix)
        return
    if len(header) < _INCOMPATIBLE.size:
        fix = "expected a whole qcow2 image, copy it again"
        raise Refusal(what, f"{image} is {len(header)} bytes long", fix)
    _, version = _VERSION.unpack_from(header)
    (backing,) = _BACKING_FILE.unpack_from(header)
    (features,) = _INCOMPATIBLE.unpack_from(header) if version >= 3 else (0,)
    for named, kind in ((backing, "backing"), (features & _DATA_FILE, "data")):
        if named:
            fix = "expected one image alone, as qemu-img convert makes it"
            raise Refusal(what, f"{image} has a {kind} file", fix)


def make_empty(path: Path, size: int) -> None:
    """An image of `size` bytes without content, in a file that is there."""
    output(("qemu-img", "create", "-q", "-f", "qcow2", path, str(size)), package="qemu-utils")


def make_overlay(path: Path, below: Path, kind: Literal["raw", "qcow2"]) -> None:
    """An image, in a file that is there, with the content of another one, which stays as it is."""
    output(("qemu-img", "create", "-q", "-f", "qcow2", "-b", below, "-F", kind, path), package="qemu-utils")
