"""How far a QEMU is before its guest runs, as the kernel tells of its process."""

from pathlib import Path

import pytest

from launcher.runtime.progress import Progress, Wanted, read_progress, wanted_by, words
from tests.processes import FIXTURES

GIB = 1 << 30
_STATUS = """Name:\tqemu-system-x86
VmPeak:\t 9000000 kB
VmLck:\t 2097152 kB
VmPin:\t       0 kB
VmRSS:\t 3145728 kB
HugetlbPages:\t 1048576 kB
Threads:\t5
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """QEMU is process 42, with two devices open."""
    (tmp_path / "run/qemu").mkdir(parents=True)
    (tmp_path / "run/qemu/default_vm.pid").write_text("42\n")
    (tmp_path / "42/fd").mkdir(parents=True)
    (tmp_path / "42/status").write_text(_STATUS)
    for number, target in enumerate(("/dev/null", "anon_inode:[vfio-device]", "anon_inode:[vfio-device]")):
        (tmp_path / "42/fd" / str(number)).symlink_to(target)
    return tmp_path


def test_memory_pinned_memory_and_devices_are_told_of_qemus_process(proc: Path) -> None:
    found = read_progress(proc, "default_vm", proc)
    assert found == Progress(memory=4 * GIB, pinned=2 * GIB, devices=2)
    assert words(found, Wanted(8 * GIB, 4)) == "4.0 of 8.0 GiB of memory are there, 2.0 pinned, 2 of 4 devices open"
    assert words(found, Wanted(8 * GIB, 0)) == "4.0 of 8.0 GiB of memory are there"


def test_what_cannot_be_seen_is_left_out(proc: Path) -> None:
    (proc / "42/fd").rename(proc / "elsewhere")
    assert words(read_progress(proc, "default_vm", proc), Wanted(8 * GIB, 4)).endswith("2.0 pinned")
    (proc / "42/status").unlink()
    assert words(read_progress(proc, "default_vm", proc), Wanted(8 * GIB, 4)) == "libvirt prepares QEMU"


@pytest.mark.parametrize("number", ["", "no number", "1" * 5000])
def test_a_file_that_names_no_process_is_no_qemu(proc: Path, number: str) -> None:
    (proc / "run/qemu/default_vm.pid").write_text(number)
    assert read_progress(proc, "default_vm", proc) is None


def test_what_the_guest_is_to_have_stands_in_its_domain() -> None:
    assert wanted_by((FIXTURES / "domains/seed-000-older-dialect.xml").read_text()).devices > 1
    assert wanted_by((FIXTURES / "domains/rtx-2060.xml").read_text()).memory == 8 * GIB
