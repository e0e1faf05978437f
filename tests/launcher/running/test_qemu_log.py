import logging
from pathlib import Path

import pytest

from launcher.running.qemu_log import repeated
from program.errors import Refusal
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


def test_a_log_is_for_its_owner_alone(tmp_path: Path) -> None:
    with repeated(tmp_path, "default_vm"):
        pass
    assert (tmp_path / "log" / "qemu" / "default_vm.log").stat().st_mode & 0o777 == 0o600


def test_a_log_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    with pytest.raises(Refusal, match="cannot open the log for QEMU: Not a directory"), repeated(tmp_path, "vm"):
        pass
