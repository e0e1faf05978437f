"""The file with a suspended guest's memory and devices, on a claim of the VM's.

It is libvirt's file of a saved domain. Its name shows its state, whichever process was killed: `VM.memory.half` is
being written, and never resumed; `VM.memory` is whole, and its guest runs nowhere; `VM.memory.resumed` has a guest that
runs or was about to, and is not resumed again. Each step is a rename, which only one of two launchers can do, and which
is on disk before the next step.

Anybody who can write to the claim can write this file: what is read here is bounded, and QEMU reads the rest as user
107.
"""

import os
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr
from zlib import crc32

from launcher.runtime.suspendable import needed
from launcher.vm.volumes.places import regular_file
from program.errors import Refusal

_WHOSE = "the suspended guest's memory"
# virQEMUSaveHeader of libvirt's src/qemu/qemu_saveimage.h: magic, version, data_len, was_running, format, cookieOffset,
# of 23 numbers in all. After it comes the domain's XML. Of the formats, 0 is QEMU's own stream.
_HEADER = struct.Struct("=16s5I56x")
_WHOLE = b"LibvirtQemudSave"
_VERSION = 2
_FORMATS = {0: "raw"}
_LONGEST_XML = 4 << 20  # bytes
#: What the suspended domain's XML says of us; its element's own attributes are GuestMark's.
NAMESPACE, PREFIX = "https://gpu-launcher.dev/suspended", "suspended"


class GuestMark(NamedTuple):
    """What a suspended guest had: `qemu`'s version and the host's processor; and whether its CPUs `ran`."""

    qemu: str
    processor: str
    ran: bool

    def element(self) -> str:
        ran = "yes" if self.ran else "no"
        return f'<domain qemu={quoteattr(self.qemu)} processor={quoteattr(self.processor)} ran="{ran}"/>'


@dataclass(frozen=True, slots=True)
class MemoryFile:
    """The memory file of the `vm` of that name, in the `directory` where its claim is mounted. Each method raises
    Refusal if the file system refuses."""

    directory: Path
    vm: str

    @property
    def whole(self) -> Path:
        return self.directory / f"{self.vm}.memory"

    @property
    def half(self) -> Path:
        return self.directory / f"{self.vm}.memory.half"

    @property
    def resumed(self) -> Path:
        return self.directory / f"{self.vm}.memory.resumed"

    def found(self) -> GuestMark | None:
        """Return the mark of the guest in the whole file; None without a file. Refusal if the file is not libvirt's, or
        if its guest may have run since."""
        if os.path.lexists(self.resumed):
            raise Refusal(
                self.resumed,
                "its guest was about to run when its launcher ended, and may have run",
                f"if it has not, rename the file to {self.whole.name}, else remove it: the guest starts anew",
            )
        if not os.path.lexists(self.whole):
            return None
        file = regular_file(_WHOSE, self.whole, self.directory)
        try:
            with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
                header = opened.read(_HEADER.size)
                if len(header) < _HEADER.size:
                    raise self._strange("is too short")
                magic, version, length, _, form, cookie = _HEADER.unpack(header)
                if magic != _WHOLE or version != _VERSION:
                    raise self._strange("is not whole, or not libvirt's")
                if form not in _FORMATS:
                    raise self._strange(f"has libvirt's format {form}")
                if not 0 < (size := cookie or length) <= min(length, _LONGEST_XML):
                    raise self._strange(f"has {size} bytes of XML")
                return self._mark(opened.read(size).rstrip(b"\0"))
        except OSError as error:
            raise _refused(file, "read", error) from error

    def _mark(self, xml: bytes) -> GuestMark:
        try:
            if b"<!" in xml:  # libvirt writes no declarations, which could make much of little
                raise ValueError
            tree = ElementTree.fromstring(xml.decode())  # noqa: S314
        except (ValueError, ElementTree.ParseError) as error:
            raise self._strange("has no domain's XML") from error
        mark = tree.find(f"metadata/{{{NAMESPACE}}}domain")
        if mark is None or not mark.attrib.keys() >= {"qemu", "processor", "ran"}:
            raise self._strange("was not suspended by gpu-launcher")
        return GuestMark(mark.attrib["qemu"][:100], mark.attrib["processor"][:100], mark.attrib["ran"] == "yes")

    def _strange(self, wrong: str) -> Refusal:
        return Refusal(self.whole, wrong, "remove the file to have the guest start anew")

    def begin(self, memory: int) -> None:
        """Make room for a file of a guest with so many bytes of memory."""
        if os.path.lexists(self.whole) or os.path.lexists(self.resumed):
            raise Refusal(self.whole, "is there already, of an earlier run", "remove it, this guest runs without it")
        try:
            self.half.unlink(missing_ok=True)
            status = os.statvfs(self.directory)
        except OSError as error:
            raise _refused(self.directory, "written", error) from error
        free, wanted = status.f_bavail * status.f_frsize, needed(memory)
        if free < wanted:
            raise Refusal(
                self.directory,
                f"has {free >> 20} MiB free, and the guest's memory may need {wanted >> 20} MiB",
                "make room on the claim, or make it larger",
            )

    def written(self) -> int:
        """Return the number of bytes that are on the claim by now."""
        with suppress(OSError):
            return self.half.stat().st_size
        return 0

    def finish(self) -> None:
        """Flush the fully written half file to disk, and rename it to be the whole one."""
        try:
            _sync(self.half)
            self.half.rename(self.whole)
        except OSError as error:
            raise _refused(self.half, "finished", error) from error
        with suppress(OSError):  # it is whole, whatever its directory is
            _sync(self.directory)

    def finish_stream(self) -> None:
        """Turn the half file into the whole one, as libvirt has written it into a pipe: after the guest, it writes the
        header anew, which in a file replaces the first one."""
        try:
            with self.half.open("r+b") as file:
                end = file.seek(-_HEADER.size, os.SEEK_END)
                header = file.read()
                if not header.startswith(_WHOLE):
                    raise Refusal(self.half, "does not end with libvirt's header of a whole file", "send it again")
                file.truncate(end)
                file.seek(0)
                file.write(header)
            self.half.rename(self.whole)
        except OSError as error:
            raise _refused(self.half, "finished", error) from error

    def clear(self) -> None:
        """Remove all that is left of an earlier guest."""
        try:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            for each in (self.half, self.whole, self.resumed):
                each.unlink(missing_ok=True)
        except OSError as error:
            raise _refused(self.directory, "cleared", error) from error

    def drop(self) -> None:
        """Remove a half file. What cannot be removed stays, and is never resumed."""
        with suppress(OSError):
            self.half.unlink()

    def claim(self) -> None:
        """Take the whole file for this launcher alone; its guest may run then."""
        try:
            self.whole.rename(self.resumed)
        except FileNotFoundError as error:
            fix = "`kubectl gpuvm list` shows where it runs, and each VM may run once"
            raise Refusal(self.whole, "is gone: another launcher resumes this guest", fix) from error
        except OSError as error:
            raise _refused(self.whole, "renamed", error) from error
        with suppress(OSError):
            _sync(self.directory)

    def give_back(self) -> None:
        """Undo claim(): the guest has not run."""
        with suppress(OSError):
            self.resumed.rename(self.whole)

    def forget(self) -> None:
        """Remove the file: its guest runs."""
        try:
            self.resumed.unlink()
        except OSError as error:
            raise _refused(self.resumed, "removed, and the next start will refuse it", error) from error


class Restored(NamedTuple):
    """A guest that was restored from a file, with its CPUs stopped."""

    mark: GuestMark
    memory: MemoryFile


def processor_in(cpuinfo: str) -> str:
    """Return a text that differs between processors with different features, from the first one in /proc/cpuinfo: on
    x86 its model and a sum of its flags, on arm64 its parts."""
    names = (
        *("vendor_id", "cpu family", "model", "stepping"),
        *("CPU implementer", "CPU variant", "CPU part", "CPU revision"),
    )
    lines = (line.partition(":") for line in cpuinfo.partition("\n\n")[0].splitlines())
    first = {name.strip(): value.strip() for name, _, value in lines}
    flags = " ".join(sorted(first.get("flags", first.get("Features", "")).split()))
    return " ".join([*(first[name] for name in names if name in first), f"{crc32(flags.encode()):08x}"])


def _sync(path: Path) -> None:
    place = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(place)
    finally:
        os.close(place)


def _refused(path: Path, what: str, error: OSError) -> Refusal:
    return Refusal(path, f"cannot be {what}: {error.strerror}", "expected a claim with room that this user may write")
