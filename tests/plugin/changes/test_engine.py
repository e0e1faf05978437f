"""Changes of the node: in which order they are remembered, done, read back and undone, whatever fails."""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from pci.address import PCIAddress
from plugin.changes.engine import Failed, NodeChange, NodeIO, Shortfall, Write, carry_out
from plugin.changes.journal import Journal, JournalFile
from program.child import Late
from program.errors import Refusal

FIRST, OTHER = PCIAddress.parse("0000:41:00.0"), PCIAddress.parse("0000:61:00.0")


@dataclass(frozen=True)
class Turn(NodeChange):
    """A device gets so many functions by one write."""

    at: PCIAddress
    count: int
    before_it: int = 0

    def __str__(self) -> str:
        return f"{self.count} of {self.at}"

    @property
    def device(self) -> PCIAddress:
        return self.at

    def is_needed(self, node: NodeIO) -> bool:
        node.refuse_use(str(self.at))
        return True

    def before(self, journal: Journal) -> Journal:
        return journal.with_entry("functions", str(self.at), self.count) if self.count else journal

    def do(self, node: NodeIO) -> tuple[NodeChange, ...]:
        node.do_writes([Write(str(self.at), str(self.count))])
        if (node.sys / str(self.at)).read_text() != str(self.count):
            raise Failed(self.at, "has no effect", "see the log")
        return (Turn(self.at, self.before_it, self.count),)

    def after(self, journal: Journal) -> Journal:
        return journal if self.count else journal.without("functions", str(self.at))

    def undone(self, journal: Journal) -> Journal:
        return journal.without("functions", str(self.at)) if self.count else journal


class Devices:
    """A node of two devices. `instead` says what a write with this text meets: an error, or no effect."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.journal = JournalFile(directory / "state", "")
        self.instead: dict[str, BaseException | None] = {}
        self.log: list[str] = []
        for address in (FIRST, OTHER):
            (directory / str(address)).write_text("0")

    def write(self, write: Write) -> None:
        assert write.text == "0" or write.path in self.journal.read().functions, "it is remembered before"
        self.log.append(f"{write.text} of {write.path}")
        if (error := self.instead.get(self.log[-1], self)) is self:
            (self.directory / write.path).write_text(write.text)
        elif isinstance(error, BaseException):
            raise error

    def carry_out(
        self, *changes: NodeChange, user: Callable[[str], str | None] = lambda name: None
    ) -> Shortfall | None:
        self.done: list[NodeChange] = []
        node = NodeIO(sys=self.directory, journal=self.journal, write=self.write, user=user)
        return carry_out(node, changes, self.done.append)

    @property
    def ours(self) -> dict[str, int]:
        return dict(self.journal.read().functions)


@pytest.fixture
def devices(tmp_path: Path) -> Devices:
    return Devices(tmp_path)


UP, OTHER_UP = Turn(FIRST, 4), Turn(OTHER, 2)
REFUSED = OSError(errno.EIO, os.strerror(errno.EIO))


def test_what_is_done_is_told_and_remembered(devices: Devices) -> None:
    assert devices.carry_out(UP, OTHER_UP) is None
    assert (devices.done, devices.ours) == ([UP, OTHER_UP], {str(FIRST): 4, str(OTHER): 2})
    assert devices.carry_out(Turn(FIRST, 0, 4)) is None
    assert devices.ours == {str(OTHER): 2}


@pytest.mark.parametrize("error", [REFUSED, None], ids=["an error", "no effect"])
def test_what_fails_undoes_what_was_before_it_and_is_forgotten(devices: Devices, error: OSError | None) -> None:
    devices.instead = {str(OTHER_UP): error}
    shortfall = devices.carry_out(UP, OTHER_UP, Turn(FIRST, 8, 4))
    assert shortfall is not None
    assert (shortfall.change, shortfall.left, devices.done) == (OTHER_UP, (), [UP])
    assert shortfall.outcome("all is as it was").wrong.endswith(", and all is as it was")
    assert (devices.log, devices.ours) == ([str(UP), str(OTHER_UP), f"0 of {FIRST}"], {})


def test_what_cannot_be_undone_is_named_and_stays_remembered(devices: Devices) -> None:
    devices.instead = {str(OTHER_UP): REFUSED, f"0 of {FIRST}": REFUSED}
    shortfall = devices.carry_out(UP, OTHER_UP)
    assert shortfall is not None
    assert shortfall.outcome("").wrong == (
        f"Input/output error, and not undone: {UP} (echo 0 > /sys/{FIRST}: Input/output error)"
    )
    assert devices.ours == {str(FIRST): 4}


def test_of_a_device_in_which_the_kernel_hangs_nothing_is_undone_or_forgotten(devices: Devices) -> None:
    again = Turn(FIRST, 8, 4)
    devices.instead = {str(again): Late("", "", "", 4711)}
    shortfall = devices.carry_out(UP, OTHER_UP, again)
    assert shortfall is not None
    assert shortfall.problem.wrong == "process 4711 hangs in the kernel until nobody has the device open any more"
    assert shortfall.left == (f"{again} (the kernel is still at it)", f"{UP} (the kernel is still at it)")
    assert devices.log[-1] == f"0 of {OTHER}", "another device is as it was before"
    assert devices.ours == {str(FIRST): 8}


def test_what_somebody_uses_is_not_written_or_remembered(devices: Devices) -> None:
    shortfall = devices.carry_out(UP, user={str(FIRST): "pod vms/a"}.get)
    assert shortfall is not None
    assert shortfall.problem.wrong == "is in use by pod vms/a"
    assert (devices.log, devices.ours) == ([], {})


def test_what_cannot_be_remembered_is_not_done(devices: Devices) -> None:
    (devices.directory / "state").touch()
    shortfall = devices.carry_out(UP)
    assert shortfall is not None
    assert "cannot be written" in shortfall.problem.wrong
    assert devices.log == []


def test_a_program_of_nvidias_is_called_for_nothing_else(devices: Devices) -> None:
    node = NodeIO(sys=devices.directory, journal=devices.journal, write=devices.write)
    with pytest.raises(Refusal, match="sriov-manage: is not called for this"):
        node.run("sriov-manage", "-e", str(FIRST))
