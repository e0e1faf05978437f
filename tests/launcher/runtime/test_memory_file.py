"""The file of a suspended guest's memory: what it is called when, and what is read of one that somebody else wrote."""

import os
import struct
from pathlib import Path

import pytest

from launcher.runtime.memory_file import NAMESPACE, GuestMark, MemoryFile, processor_in
from launcher.runtime.suspendable import needed
from program.errors import Refusal

_MARK = GuestMark("7.2.22", "AMD", ran=True)
_XML = (
    f"<domain><metadata><s:domain xmlns:s='{NAMESPACE}' qemu='7.2.22' processor='AMD' ran='yes'/></metadata></domain>"
)


def saved(xml: str = _XML, magic: bytes = b"LibvirtQemudSave", form: int = 0, length: int | None = None) -> bytes:
    """A file as libvirt begins it."""
    data = xml.encode() + b"\0"
    length = len(data) if length is None else length
    return magic + struct.pack("=5I56x", 2, length, 0, form, 0) + data


@pytest.fixture
def memory(tmp_path: Path) -> MemoryFile:
    return MemoryFile(tmp_path, "vm")


def test_a_whole_file_says_what_its_guest_was(memory: MemoryFile) -> None:
    assert memory.found() is None
    memory.whole.write_bytes(saved())
    assert memory.found() == _MARK


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is too short"),
        (saved(magic=b"LibvirtQemudPart"), "is not whole, or not libvirt's"),
        (saved(form=2), "has libvirt's format 2"),
        (saved(length=1 << 31), "has 2147483648 bytes of XML"),
        (saved("<!DOCTYPE d [<!ENTITY a 'a'>]><domain/>"), "has no domain's XML"),
        (saved("<domain>"), "has no domain's XML"),
        (saved("<domain/>"), "was not suspended by gpu-launcher"),
    ],
)
def test_a_file_that_is_none_is_refused_and_stays(memory: MemoryFile, content: bytes, says: str) -> None:
    memory.whole.write_bytes(content)
    with pytest.raises(Refusal, match=says):
        memory.found()
    assert memory.whole.read_bytes() == content


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_what_is_no_file_of_the_claims_is_not_opened(
    memory: MemoryFile, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "file"
    elsewhere.write_bytes(saved())
    match kind:
        case "link":
            memory.whole.symlink_to(elsewhere)
        case "pipe":
            os.mkfifo(memory.whole)
        case _:
            memory.whole.mkdir()
    with pytest.raises(Refusal, match="the suspended guest's memory"):
        memory.found()


def test_of_two_launchers_one_has_the_file(memory: MemoryFile) -> None:
    memory.whole.write_bytes(saved())
    memory.claim()
    with pytest.raises(Refusal, match="another launcher resumes this guest"):
        memory.claim()
    memory.give_back()
    memory.claim()
    memory.forget()
    assert memory.found() is None


def test_nothing_is_written_over_a_whole_file(memory: MemoryFile) -> None:
    memory.whole.write_bytes(saved())
    with pytest.raises(Refusal, match="is there already, of an earlier run"):
        memory.begin(0)


def test_the_claim_has_room_for_the_memory_and_a_sixteenth_beside_it(memory: MemoryFile) -> None:
    assert needed(16 << 30) == (17 << 30) + (64 << 20)
    memory.half.write_bytes(b"an earlier one")
    memory.begin(1 << 20)
    assert not memory.half.exists()
    with pytest.raises(Refusal, match="MiB free, and the guest's memory may need"):
        memory.begin(1 << 60)


def test_a_processor_is_told_from_one_with_other_flags() -> None:
    text = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nstepping\t: 1\nflags\t\t: {}\n\nvendor_id: x\n"
    one, same, other = (processor_in(text.format(flags)) for flags in ("fpu vme", "vme fpu", "fpu"))
    assert one == same != other
    assert one.startswith("AuthenticAMD 25 1 1 ")
