"""ISO 9660 images of files in memory, with Rock Ridge for Unix and Joliet for Windows."""

import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from launcher.storage.places import whole_blocks
from launcher.storage.programs import output

# ECMA-119: descriptors from sector 16 on, until the one of type 255; the volume's name is at byte 40, 32 bytes long.
_SECTOR = 2048
_PRIMARY, _JOLIET, _LAST = 1, 2, 255
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
    image = output(command, package="libarchive-tools", given=_tar(iso.files), environ=beside)
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
    """The image with the label as it is: libarchive writes `CONFIG_2`, since the standard has no small letters, and
    cloud-init looks for `config-2`. Joliet's label, which Windows shows, has room for 16 characters.
    """
    labelled = bytearray(image)
    names = {
        _PRIMARY: label.ljust(_NAME_LENGTH).encode("ascii"),
        _JOLIET: label[: _NAME_LENGTH // 2].ljust(_NAME_LENGTH // 2).encode("utf-16-be"),
    }
    for sector in count(_FIRST_DESCRIPTOR):
        start = sector * _SECTOR
        kind = labelled[start]
        if kind == _LAST:
            return bytes(labelled)
        if kind in names:
            labelled[start + _NAME : start + _NAME + _NAME_LENGTH] = names[kind]
    raise AssertionError("count() does not end")
