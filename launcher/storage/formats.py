"""Formats of disk images, by their first and last bytes: an image is never taken for raw that is not.

The bytes: QEMU's block/*.c, the functions *_probe, and docs/interop. LUKS is not among them, since a raw disk that its
guest encrypts as a whole begins so. Content only refuses; the format that QEMU opens is the declared one.
"""

import os
import shlex
from contextlib import suppress
from itertools import chain
from pathlib import Path

from program.errors import Refusal

#: By qemu-img's name: where the bytes are, from the image's start.
_FIRST: tuple[tuple[str, int, bytes], ...] = (
    ("qcow", 0, b"QFI\xfb\0\0\0\1"),
    ("qcow2", 0, b"QFI\xfb"),
    ("vmdk", 0, b"KDMV"),
    ("vmdk", 0, b"COWD"),
    ("vmdk", 0, b"# Disk DescriptorFile"),
    ("vhdx", 0, b"vhdxfile"),
    ("vdi", 64, b"\x7f\x10\xda\xbe"),
    ("qed", 0, b"QED\0"),
    ("vpc", 0, b"conectix"),
    ("parallels", 0, b"WithoutFreeSpace"),
    ("parallels", 0, b"WithouFreSpacExt"),
)
#: Of the last sector: a fixed VHD is raw before that, and a DMG begins in many ways.
_LAST: tuple[tuple[str, bytes], ...] = (("vpc", b"conectix"), ("dmg", b"koly"))
_SECTOR = 512
#: The extended attribute of a raw disk that a guest has been given: what is in it is the guest's since.
_GUESTS = "user.gpu-launcher.guests"


def format_of(image: Path) -> str:
    """Return qemu-img's name of the format by which a file begins or ends, "raw" for any other file. OSError if it
    cannot be read."""
    # Without O_NONBLOCK the opening of a pipe would wait for its writer.
    with os.fdopen(os.open(image, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        first = file.read(_SECTOR)
        file.seek(max(0, file.seek(0, os.SEEK_END) - _SECTOR))
        last = file.read(_SECTOR)
    of_first = (name for name, place, magic in _FIRST if first.startswith(magic, place))
    of_last = (name for name, magic in _LAST if last.startswith(magic))
    return next(chain(of_first, of_last), "raw")


def refuse_other_format(whose: str, image: Path, declared: str, *, by_name: bool = False) -> None:
    """Raise Refusal, about `whose` image it is, for one that is not of the declared format; `by_name`, if the file's
    name declares it. A raw disk that a guest has had may have anything in it.

    What cannot be read is left to launcher.checks.volumes.
    """
    try:
        actual = format_of(image)
    except OSError:
        return
    if actual == declared or (declared == "raw" and _is_guests(image)):
        return
    to = "qcow2" if by_name else "raw"
    fix = f"qemu-img convert -f {actual} -O {to} {shlex.quote(str(image))} NEW.{to}, and take that one"
    if by_name and actual in ("raw", "qcow2"):
        fix = f"name it {image.stem}.{'qcow2' if actual == 'qcow2' else 'img'}"
    how = " by its name" if by_name else ""
    raise Refusal(whose, f"{image} is a {actual} image, and would be opened as {declared}{how}", fix)


def becomes_guests(image: Path) -> None:
    """Mark a raw disk before its guest is started, as far as its file system can: without the mark, a later start
    refuses what the guest may have written there."""
    if _is_guests(image):
        return
    with suppress(OSError):
        os.setxattr(image, _GUESTS, b"1", follow_symlinks=False)


def _is_guests(image: Path) -> bool:
    try:
        return bool(os.getxattr(image, _GUESTS))
    except OSError:
        return False
