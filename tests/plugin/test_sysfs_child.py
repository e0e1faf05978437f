"""Reads that the kernel may never answer. A FIFO that nobody writes to stands for such a file: who opens it waits."""

import errno
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from pci.sysfs.attribute import CannotLook, Silent, text
from pci.sysfs.functions import DEVICES, read_host
from plugin.sysfs_child import MOST_SILENT, _could_run, ask
from program.errors import Refusal
from tests.conftest import Machine

# pytest-xdist's workers have two threads, of which a fork copies one: the one that reads.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

AUDIO = "0000:01:00.1"


def block(sys: Path, path: str) -> None:
    """Let whoever opens this file wait."""
    (sys / path).unlink(missing_ok=True)
    os.mkfifo(sys / path)


def test_what_is_read_in_another_process_is_what_is_read_here(machine: Machine) -> None:
    sys = machine("two-rtx-3090")
    assert ask(read_host, sys) == (read_host(sys), ())


def test_what_it_raises_is_raised_here(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=rf"^{tmp_path}: expected a sysfs tree"):
        ask(read_host, tmp_path)
    with pytest.raises(ZeroDivisionError):
        ask(lambda sys: 1 // 0, tmp_path)


def test_a_file_that_is_never_answered_is_silent_and_everything_else_is_read(copied_machine: Machine) -> None:
    sys = copied_machine("two-rtx-3090")
    before = read_host(sys)
    block(sys, f"{DEVICES}/{AUDIO}/uevent")
    host, silent = ask(read_host, sys)
    place = (sys / DEVICES / AUDIO).resolve().relative_to(sys.resolve())
    assert silent == (f"{place}/uevent",)
    assert host.silent == {AUDIO}
    assert [str(fault) for fault in host.faults] == [f"{DEVICES}/{AUDIO}/uevent: the kernel did not answer"]
    assert {str(address) for address in before.functions.keys() - host.functions.keys()} == {AUDIO}
    assert host.as_seen_since(before).functions == before.functions
    assert host.as_seen_since(before).groups == before.groups


def _each(sys: Path, count: int, wait: Callable[[int], None]) -> None:
    for number in range(count):
        try:
            text(sys, str(number))
        except Silent:
            wait(number)


def test_where_everything_is_silent_nothing_is_asked_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(MOST_SILENT + 1):
        os.mkfifo(tmp_path / str(number))
    monkeypatch.setattr("plugin.sysfs_child.PATIENCE", 0.3)
    with pytest.raises(Refusal, match=f"did not answer for {MOST_SILENT + 1} files"):
        ask(_each, tmp_path, MOST_SILENT + 1, lambda number: None)


def test_without_a_descriptor_left_a_look_fails_and_no_node_is_empty(machine: Machine) -> None:
    def starved(sys: Path) -> object:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
        return read_host(sys)

    with pytest.raises(Refusal, match=os.strerror(errno.EMFILE)):
        ask(starved, machine("two-rtx-3090"))


@pytest.mark.parametrize("path", [DEVICES, "kernel/iommu_groups"])
def test_a_directory_that_cannot_be_listed_is_a_failed_look(copied_machine: Machine, path: str) -> None:
    """Root may read whatever it likes; but nobody can follow a link to itself."""
    sys = copied_machine("two-rtx-3090")
    (sys / path).rename(sys / "away")
    (sys / path).symlink_to(Path(path).name)
    with pytest.raises(CannotLook, match=f"{path}: cannot be read: {os.strerror(errno.ELOOP)}"):
        read_host(sys)


def test_a_process_that_was_killed_is_a_failed_look(machine: Machine) -> None:
    with pytest.raises(Refusal, match="the process that read was killed"):
        ask(lambda sys: os.kill(os.getpid(), signal.SIGKILL), machine("two-rtx-3090"))


def test_who_waits_for_a_processor_does_not_wait_for_the_kernel(tmp_path: Path) -> None:
    assert _could_run(os.getpid())
    os.mkfifo(tmp_path / "silent")
    child = os.fork()
    if child == 0:
        try:
            text(tmp_path, "silent")
        finally:
            os._exit(0)
    try:
        while _could_run(child):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
