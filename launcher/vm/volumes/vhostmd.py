"""The disk by which a guest reads metrics of its host, in vhostmd's format (github.com/vhostmd/vhostmd): a header, and
the metrics as XML. In the guest vm-dump-metrics reads it.
"""

import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

SIZE = 256 << 10
#: The signature, whether it is being written, the sum of the text's bytes, and their number.
_HEADER = struct.Struct(">4sIII")
_SIGNATURE = b"mvbd"


class Metric(NamedTuple):
    """`type`: of the value, as vhostmd calls it. `unit`: "" for none."""

    context: Literal["host", "vm"]
    name: str
    type: Literal["int64", "uint64", "real64", "string"]
    value: str
    unit: str = ""


def text_of(metrics: Iterable[Metric]) -> bytes:
    """Return the metrics as XML."""
    lines = ["<metrics>"]
    for metric in metrics:
        unit = f' unit="{metric.unit}"' if metric.unit else ""
        lines += [
            f'  <metric type="{metric.type}" context="{metric.context}"{unit}>',
            f"    <name>{metric.name}</name>",
            f"    <value>{metric.value.replace('&', '&amp;').replace('<', '&lt;')}</value>",
            "  </metric>",
        ]
    return "\n".join([*lines, "</metrics>", ""]).encode()


def disk_of(text: bytes) -> bytes:
    """Return the whole disk."""
    return (_header(text) + text).ljust(SIZE, b"\0")


def write_text(path: Path, text: bytes) -> None:
    """Replace the text in a disk of a running guest; a guest that reads meanwhile takes none of it. OSError if the disk
    cannot be written."""
    disk = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.pwrite(disk, _header(b"", is_written=True), 0)
        os.fsync(disk)
        os.pwrite(disk, text, _HEADER.size)
        os.fsync(disk)
        os.pwrite(disk, _header(text), 0)
    finally:
        os.close(disk)


def _header(text: bytes, *, is_written: bool = False) -> bytes:
    return _HEADER.pack(_SIGNATURE, is_written, sum(text), len(text))
