"""Images in QEMU's format: what is in the header of one, and new ones, which qemu-img makes.

The header: QEMU's docs/interop/qcow2.txt.
"""

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from launcher.storage.programs import output
from program.errors import Refusal

MAGIC = b"QFI\xfb"

#: The magic, the version, where the backing file's name is and how long; the incompatible features and the header's
#: length, both there from version 3 on.
_HEADER = struct.Struct(">4sIQI52xQ20xI")
_LENGTH_OF_VERSION_2 = 72
_DATA_FILE = 1 << 2
_EXTENSION = struct.Struct(">II")  # its type and length; padded to 8 bytes
_BACKING_FORMAT = 0xE2792ACA
_FIRST_CLUSTER = 64 << 10  # bytes, of the images that qemu-img makes; names and extensions are within it
_SECTOR = 512  # of raw images, for QEMU
_LONGEST = 200  # characters of a name in an error


def is_qcow2(image: Path) -> bool | None:
    """Return whether a file begins as qcow2 images do; None if it cannot be read."""
    try:
        with image.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class OtherFiles:
    """The other files that an image names: its backing file, with the format that is said of it; "" for none."""

    backing: str = ""
    format: str = ""
    has_data_file: bool = False


def other_files(header: bytes) -> OtherFiles:
    """Return what the first bytes of a qcow2 image say; "?" for a name that is not among them. As QEMU reads them, what
    is behind the name of the backing file is no extension."""
    header = header.ljust(_HEADER.size, b"\0")
    _, version, place, length, features, end = _HEADER.unpack_from(header)
    backing, kind = (header[place : place + length] or b"?") if place else b"", b""
    at = end if version >= 3 else _LENGTH_OF_VERSION_2
    while at + _EXTENSION.size <= min(place or len(header), len(header)):
        extension, size = _EXTENSION.unpack_from(header, at)
        at += _EXTENSION.size
        if not extension:
            break
        if extension == _BACKING_FORMAT:
            kind = header[at : at + size]
        at += -(-size // 8) * 8
    return OtherFiles(os.fsdecode(backing), os.fsdecode(kind), version >= 3 and bool(features & _DATA_FILE))


def refuse_other_files(image: Path, expected: OtherFiles) -> None:
    """Raise Refusal for a qcow2 image that names other files than those with which it was made."""
    with image.open("rb") as file:
        found = other_files(file.read(_FIRST_CLUSTER))
    if found != expected:
        backing = f"the backing file {found.backing[:_LONGEST]!r}, as {found.format[:_LONGEST]!r}"
        what = "a data file" if found.has_data_file else backing if found.backing else "no backing file"
        raise Refusal(
            image, f"is not what was made here: it has {what}", "take it away, the guest's disk is made there"
        )


def refuse_unfit(what: str, image: Path, kind: Literal["raw", "qcow2"]) -> None:
    """Raise Refusal, about `what`, for a file that is no disk image of this format, and for a qcow2 image that names
    another file: QEMU would open that one, and the guest read it. A raw image has whole sectors."""
    try:
        with image.open("rb") as file:
            header = file.read(_FIRST_CLUSTER)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise Refusal(what, f"cannot read {image}: {error.strerror}", "expected a disk image") from error
    if kind == "raw":
        if not size or size % _SECTOR:
            fix = f"expected a disk image, qcow2 or raw with sectors of {_SECTOR}"
            raise Refusal(what, f"{image} has {size} bytes", fix)
        return
    if not header.startswith(MAGIC):
        raise Refusal(what, f"{image} is no qcow2 image", "expected a whole qcow2 image, copy it again")
    if len(header) < _HEADER.size:
        fix = "expected a whole qcow2 image, copy it again"
        raise Refusal(what, f"{image} is {len(header)} bytes long", fix)
    others = other_files(header)
    for named, role in ((others.backing, "backing"), (others.has_data_file, "data")):
        if named:
            fix = "expected one image alone, as qemu-img convert makes it"
            raise Refusal(what, f"{image} has a {role} file", fix)


def make_empty(path: Path, size: int) -> None:
    """Make an existing file an empty image of `size` bytes."""
    output(("qemu-img", "create", "-q", "-f", "qcow2", path, str(size)), package="qemu-utils")


def make_overlay(path: Path, below: Path, kind: Literal["raw", "qcow2"]) -> None:
    """Make an existing file an image with the content of `below`, which stays as it is."""
    output(("qemu-img", "create", "-q", "-f", "qcow2", "-b", below, "-F", kind, path), package="qemu-utils")
