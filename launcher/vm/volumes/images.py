"""Images: of which format one is, by its first and last bytes, since an image is never taken for raw that is not; what
the header of a qcow2 image names; and new ones, qcow2 and ISO 9660, of which the latter have files from memory, with
Rock Ridge for Unix and Joliet for Windows. Programs of other packages make them: they run for milliseconds and leave no
memory behind.

The bytes: QEMU's block/*.c, the functions *_probe, and docs/interop (qcow2.txt). LUKS is not among the formats, since a
raw disk that its guest encrypts as a whole begins so. Content only refuses; the format that QEMU opens is the declared
one.
"""

import io
import os
import shlex
import struct
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Literal

from launcher.vm.volumes.places import whole_blocks
from program import child
from program.errors import Refusal

_PATIENCE = 60.0  # seconds; they take milliseconds


def output(
    command: Sequence[str | os.PathLike[str]],
    *,
    package: str,
    stdin: bytes = b"",
    environ: Mapping[str, str] | None = None,
) -> bytes:
    """Return what a program prints, with `stdin` on its standard input and `environ` over this process's environment.

    Raise Refusal in the program's own words if it fails, and with the Debian `package` to install if it is missing.
    """
    name = command[0]
    try:
        done = child.output(command, within=_PATIENCE, stdin=stdin, environ={**(environ or {}), "LC_ALL": "C.UTF-8"})
    except FileNotFoundError as error:
        fix = f"install the package {package}"
        raise Refusal(name, "is not installed, and makes the guest's disks", fix) from error
    except child.Late as error:
        raise Refusal(error.problem.subject, error.problem.wrong, "the storage below does not answer") from error
    if done.returncode:
        words = " ".join(done.stderr.decode(errors="replace").split())
        ended = f"exit code {done.returncode}" if done.returncode > 0 else f"signal {-done.returncode}"
        raise Refusal(" ".join(map(str, command)), words or ended, f"these words are {name}'s own")
    return done.stdout


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
    """Return qemu-img's name of the format that a file's first or last bytes show, "raw" for any other file. OSError if
    it cannot be read."""
    # Without O_NONBLOCK the opening of a pipe would wait for its writer.
    with os.fdopen(os.open(image, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        first = file.read(_SECTOR)
        file.seek(max(0, file.seek(0, os.SEEK_END) - _SECTOR))
        last = file.read(_SECTOR)
    of_first = (name for name, place, magic in _FIRST if first.startswith(magic, place))
    of_last = (name for name, magic in _LAST if last.startswith(magic))
    return next(chain(of_first, of_last), "raw")


def refuse_other_format(whose: str, image: Path, declared: str, *, by_name: bool = False) -> None:
    """Raise Refusal for an image of another format than the declared one; `whose` image it is begins the message, and
    `by_name` says that the file's name declares the format. A raw disk that a guest has had may contain anything.

    What cannot be read is left to launcher.vm.volumes.checks.
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
    """Mark a raw disk before its guest starts, if its file system can: without the mark, a later start refuses data
    that the guest may have written there."""
    if _is_guests(image):
        return
    with suppress(OSError):
        os.setxattr(image, _GUESTS, b"1", follow_symlinks=False)


def _is_guests(image: Path) -> bool:
    try:
        return bool(os.getxattr(image, _GUESTS))
    except OSError:
        return False


MAGIC = b"QFI\xfb"

#: The magic, the version, where the backing file's name is and how long; the incompatible features and the header's
#: length, both there from version 3 on.
_HEADER = struct.Struct(">4sIQI52xQ20xI")
_LENGTH_OF_VERSION_2 = 72
_DATA_FILE = 1 << 2
_EXTENSION = struct.Struct(">II")  # its type and length; padded to 8 bytes
_BACKING_FORMAT = 0xE2792ACA
_FIRST_CLUSTER = 64 << 10  # bytes, of the images that qemu-img makes; names and extensions are within it
_RAW_SECTOR = 512  # of raw images, for QEMU
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
    """Return the names in the first bytes of a qcow2 image; "?" for a name behind these bytes. Like QEMU, read no
    extension behind the backing file's name."""
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
        others = other_files(file.read(_FIRST_CLUSTER))
    if others != expected:
        backing = f"the backing file {others.backing[:_LONGEST]!r}, as {others.format[:_LONGEST]!r}"
        what = "a data file" if others.has_data_file else backing if others.backing else "no backing file"
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
        if not size or size % _RAW_SECTOR:
            fix = f"expected a disk image, qcow2 or raw with sectors of {_RAW_SECTOR}"
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


# ECMA-119: descriptors from sector 16 on, until the one of type 255; the volume's name is at byte 40, 32 bytes long.
_ISO_SECTOR = 2048
_PRIMARY, _JOLIET, _TERMINATOR = 1, 2, 255
_FIRST_DESCRIPTOR, _NAME, _NAME_LENGTH = 16, 40, 32


@dataclass(frozen=True, slots=True)
class ISO:
    """What an image has in it: a `label` of at most 32 ASCII characters, and `files`, content by relative path."""

    label: str
    files: Mapping[str, bytes]


def write_iso(iso: ISO, path: Path) -> None:
    """Write the image to an existing file. Temporary files are in the same directory."""
    command = ("bsdtar", "--create", "--format", "iso9660", "--file", "-", "@-")
    # In a pod with a read-only root there is no other place: libarchive spools there, in a file without a name.
    beside = {"TMPDIR": str(path.parent)}
    image = output(command, package="libarchive-tools", stdin=_tar(iso.files), environ=beside)
    path.write_bytes(_labelled(image, iso.label).ljust(whole_blocks(len(image)), b"\0"))


def _tar(files: Mapping[str, bytes]) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()


def _labelled(image: bytes, label: str) -> bytes:
    """Return the image with the label as it is: libarchive writes `CONFIG_2`, since the standard has no small letters,
    and cloud-init looks for `config-2`. Joliet's label, which Windows shows, has room for 16 characters."""
    labelled = bytearray(image)
    names = {
        _PRIMARY: label.ljust(_NAME_LENGTH).encode("ascii"),
        _JOLIET: label[: _NAME_LENGTH // 2].ljust(_NAME_LENGTH // 2).encode("utf-16-be"),
    }
    for sector in count(_FIRST_DESCRIPTOR):
        start = sector * _ISO_SECTOR
        kind = labelled[start]
        if kind == _TERMINATOR:
            return bytes(labelled)
        if kind in names:
            labelled[start + _NAME : start + _NAME + _NAME_LENGTH] = names[kind]
    raise AssertionError("count() does not end")
