import logging
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.runtime.qemu_log import repeated
from program.errors import Refusal
from tests.processes import ROOT
from tests.waiting import until


def test_each_line_is_logged_as_it_comes_and_one_without_an_end_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    log = tmp_path / "log" / "qemu" / "default_vm.log"
    log.parent.mkdir(parents=True)
    log.write_text("of an earlier run\n")
    with repeated(tmp_path, "default_vm"), log.open("a", buffering=1) as qemu:
        qemu.write("starting up\nhalf ")
        until(lambda: caplog.messages == ["QEMU: starting up"])
        qemu.write("a line\nof the guest's: \x1b[2J\nits last words")
    assert caplog.messages == [
        "QEMU: starting up",
        "QEMU: half a line",
        "QEMU: of the guest's: \\x1b[2J",
        "QEMU: its last words",
    ]
    assert log.read_text().startswith("of an earlier run\nstarting up\n"), "it stays"


def test_qemus_command_is_one_line_for_debugging(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    begins = "2026-11-24 12:05:08.123+0000: starting up libvirt version: 9.0.0, qemu version: 7.2.22"
    with repeated(tmp_path, "vm"), (tmp_path / "log/qemu/vm.log").open("a") as qemu:
        qemu.write(
            f"{begins}\nLC_ALL=C \\\n/usr/bin/qemu-system-x86_64 \\\n-name guest=vm \\\n-msg timestamp=on\nits own\n"
        )
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", f"QEMU: {begins}"),
        ("DEBUG", "QEMU: LC_ALL=C /usr/bin/qemu-system-x86_64 -name guest=vm -msg timestamp=on"),
        ("INFO", "QEMU: its own"),
    ]


def test_a_log_is_for_its_owner_alone(tmp_path: Path) -> None:
    with repeated(tmp_path, "default_vm"):
        pass
    assert (tmp_path / "log" / "qemu" / "default_vm.log").stat().st_mode & 0o777 == 0o600


def test_a_log_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    with pytest.raises(Refusal, match="cannot open the log for QEMU: Not a directory"), repeated(tmp_path, "vm"):
        pass


def test_a_line_without_an_end_is_cut_and_the_next_one_is_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with repeated(tmp_path, "vm"), (tmp_path / "log/qemu/vm.log").open("a", buffering=1) as qemu:
        qemu.write("x" * (1 << 20))
        qemu.write("\nnext\n")
        until(lambda: "QEMU: next" in caplog.messages)
        qemu.write("y" * (1 << 20))
    assert caplog.messages == [
        f"QEMU: {'x' * (1 << 15)} ... (a longer line)",
        "QEMU: next",
        f"QEMU: {'y' * (1 << 15)} ... (a longer line)",
    ]


_WRITES = """
import logging, os, resource, sys
from pathlib import Path
from launcher.runtime.qemu_log import repeated
logging.basicConfig(level=logging.INFO, stream=open(os.devnull, "w"))
root = Path(sys.argv[1])
with repeated(root, "vm"), open(root / "log/qemu/vm.log", "ab", buffering=0) as qemu:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines = b"a line of QEMU's, of a usual length\\n" * 1024
    for _ in range((80 << 20) // len(lines) + 1):
        qemu.write(lines)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, os.stat(root / "log/qemu/vm.log").st_size)
"""


def test_a_guest_that_makes_qemu_write_for_ever_fills_neither_memory_nor_disk(tmp_path: Path) -> None:
    """80 MiB of lines took 125 MB of memory, and 80 MiB in the pod's volume."""
    program = [sys.executable, "-c", _WRITES, str(tmp_path)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True)
    grown, size = map(int, done.stdout.split())
    assert grown < 8 << 10, f"{grown} KiB more memory"
    assert size <= 2 << 24


def test_a_log_that_libvirt_empties_before_a_start_is_read_from_its_beginning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As it does where it is not root's."""
    caplog.set_level(logging.INFO)
    log = tmp_path / "log" / "qemu" / "vm.log"
    log.parent.mkdir(parents=True)
    log.write_text("of an earlier start\n" * 100)
    with repeated(tmp_path, "vm"), log.open("w", buffering=1) as qemu:
        qemu.write("starting up\n")
        until(lambda: caplog.messages == ["QEMU: starting up"])
