"""The guest's grace period, in a file in memory: from the worker to the supervisor, which reads no plans."""

import os
import struct

_SECONDS = struct.Struct("<d")


def note_grace(place: int, seconds: float) -> None:
    os.pwrite(place, _SECONDS.pack(seconds), 0)


def grace_in(place: int) -> float:
    """Seconds; 0 where none were noted."""
    noted = os.pread(place, _SECONDS.size, 0)
    return float(_SECONDS.unpack(noted)[0]) if noted else 0.0
