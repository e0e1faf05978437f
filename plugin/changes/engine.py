"""Does changes of the node: each is recorded before it is done, read back afterwards, and undone if a later one fails.

Success that the kernel or a program of NVIDIA's reports is not trusted: both report it without an effect.
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar
from uuid import UUID, uuid4

from pci.address import PCIAddress
from plugin import sysfs_child
from plugin.changes.journal import Journal, JournalFile
from plugin.state_files import boot_id
from program.child import Late, NoAnswer, forked, let_go_of_standard_files
from program.errors import Refusal
from program.problem import Problem

ASK_THE_KERNEL = "the kernel's log says why (dmesg)"
#: How long the kernel may take for a write: drivers need seconds to stop and to start a GPU.
_WRITE_SECONDS = 30.0
P = ParamSpec("P")
T = TypeVar("T")

_APART = 0.25  # seconds between two looks for a delayed change


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """The directories that stand for /sys, /proc, /dev and /lib/modules/RELEASE, and where the journal is."""

    sys: Path
    proc: Path
    dev: Path
    modules: Path
    state: Path

    @classmethod
    def beside(cls, sys: Path, state: Path) -> Self:
        """Return the directories of a node by its /sys: the others are neighbours of that."""
        root = sys.absolute().parent
        modules = root / "lib/modules" / os.uname().release
        return cls(sys=sys, proc=root / "proc", dev=root / "dev", modules=modules, state=state)

    @property
    def journal(self) -> JournalFile:
        return JournalFile(self.state, boot_id(self.proc))


@dataclass(frozen=True, slots=True)
class Write:
    """The line `text` for the file `path` below /sys; as a string it is a shell command."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"echo {self.text} > /sys/{self.path}" if self.text else f"echo > /sys/{self.path}"


#: Does one write; OSError if the kernel refuses it, Late if it does not return.
Writer = Callable[[Write], None]


class Failed(Exception):
    """A change could not be done; `problem` says why. `left` says why a part of it is left, empty if none is."""

    def __init__(self, subject: object, wrong: str, fix: str, *, left: str = "") -> None:
        super().__init__(f"{subject}: {wrong}")
        self.problem = Problem(str(subject), wrong, fix)
        self.left = left


class Wedged(Failed):
    """The kernel has not returned from a write, and may still do it. Another write to the device would hang as well, so
    nothing of the device is undone, and its entries stay in the journal."""

    LEFT = "the kernel is still at it"

    def __init__(self, write: Write, pid: int) -> None:
        wrong = f"process {pid} hangs in the kernel until nobody has the device open any more"
        super().__init__(write, wrong, "end what has the device open", left=self.LEFT)


def _ask(read: Callable[Concatenate[Path, P], T], sys: Path, *arguments: P.args, **named: P.kwargs) -> T:
    with sysfs_child.read_or_refused(sys):
        return sysfs_child.ask(read, sys, *arguments, **named)[0]


def _nobody(_: str) -> str | None:
    return None


def _no_program(program: str, *_: str) -> None:
    raise Refusal(program, "is not called for this", "see docs/vgpus.md")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIO:
    """The access to the node that changes need.

    `ask` calls a reader of the tree `sys`; Refusal if the kernel does not answer. `user` returns who uses a function or
    a mediated device, by its address or UUID. `write` does one write to sysfs. `run` calls `sriov-manage` or
    `nvidia-smi` with arguments: Failed if it reports failure, Refusal if it cannot be called. `wait` waits a number of
    seconds, and `uuid` makes a UUID.
    """

    sys: Path
    journal: JournalFile
    write: Writer
    ask: Callable[..., Any] = _ask
    user: Callable[[str], str | None] = _nobody
    run: Callable[..., None] = _no_program
    wait: Callable[[float], None] = time.sleep
    uuid: Callable[[], UUID] = uuid4

    @classmethod
    def of(cls, roots: Roots, **others: Any) -> Self:
        return cls(sys=roots.sys, journal=roots.journal, write=sysfs_writer(roots.sys), **others)

    def do_writes(self, writes: Iterable[Write]) -> None:
        """Do these writes, in order. Raise Failed if the kernel refuses one, Wedged if it does not return from one."""
        for write in writes:
            try:
                self.write(write)
            except Late as still:
                raise Wedged(write, still.pid) from still
            except NoAnswer as error:
                raise Failed(write, error.problem.wrong, error.problem.fix) from error
            except OSError as error:
                raise Failed(write, error.strerror or "failed", ASK_THE_KERNEL) from error

    def refuse_use(self, name: str) -> None:
        """Raise Failed if the function or mediated device with this name is in use."""
        if (user := self.user(name)) is not None:
            raise Failed(name, f"is in use by {user}", "apply again when that has ended")

    def awaited(self, is_so: Callable[[], bool], looks: int, apart: float = _APART) -> bool:
        """Return whether `is_so` becomes true within `looks` looks, `apart` seconds from each other."""
        for look in range(looks):
            if look:
                self.wait(apart)
            if is_so():
                return True
        return False


class NodeChange:
    """A change of the node, a frozen value; as a string it describes itself."""

    @property
    def device(self) -> PCIAddress:
        """The function whose lock the kernel holds during the change."""
        raise NotImplementedError

    def is_needed(self, node: NodeIO) -> bool:
        """Look at users and present state. Return False if there is nothing to do; Failed if it must not be done."""
        return True

    def before(self, journal: Journal) -> Journal:
        """Return the journal as it has to be before the change begins."""
        return journal

    def do(self, node: NodeIO) -> "tuple[NodeChange, ...]":
        """Do the change and read it back; return the changes that undo it. Raise Failed if that fails."""
        raise NotImplementedError

    def after(self, journal: Journal) -> Journal:
        """Return the journal for a change that is done."""
        return journal

    def undone(self, journal: Journal) -> Journal:
        """Return the journal for a change that failed or was not begun, and of which nothing is left."""
        return journal


@dataclass(frozen=True, slots=True)
class Shortfall:
    """The change that could not be done, and why; `left` names what remains of it and of earlier ones, with reasons."""

    change: NodeChange
    problem: Problem
    left: tuple[str, ...]

    def outcome(self, as_before: str) -> Problem:
        """Return the problem, naming what is left, or with `as_before` if nothing is."""
        subject, wrong, fix = self.problem
        left = f"not undone: {', '.join(self.left)}" if self.left else as_before
        return Problem(subject, f"{wrong}, and {left}", fix)


def carry_out(
    node: NodeIO,
    changes: Sequence[NodeChange],
    done: Callable[[NodeChange], None] = lambda change: None,
    *,
    remember_first: bool = False,
) -> Shortfall | None:
    """Do these changes, in order, and call `done` with each. If one fails, undo those before it, the last one first,
    and return the Shortfall; None if all are done. `remember_first`: record all changes before the first begins, for
    changes whose interruption the node's state does not show."""
    if remember_first:
        # Even if nothing changes: without a writable journal no change is done.
        node.journal.write(reduce(lambda journal, change: change.before(journal), changes, node.journal.read()))
    undoing: list[tuple[NodeChange, tuple[NodeChange, ...]]] = []
    for number, change in enumerate(changes, start=1):
        try:
            undoing.append((change, do(node, change)))
        except (Failed, Refusal) as error:
            left = [f"{change} ({error.left})"] if isinstance(error, Failed) and error.left else []
            left += _undo(node, undoing, change.device if isinstance(error, Wedged) else None)
            if remember_first:
                node.journal.change(partial(reduce, lambda journal, each: each.undone(journal), changes[number:]))
            return Shortfall(change, error.problem, tuple(left))
        done(change)
    return None


def do(node: NodeIO, change: NodeChange) -> tuple[NodeChange, ...]:
    """Do a change; return the changes that undo it. Raise Failed if it could not be done: then nothing of it is left,
    or its entry stays in the journal."""
    if not change.is_needed(node):
        return ()
    node.journal.change(change.before)
    try:
        undoing = change.do(node)
    except Failed as failed:
        if not failed.left:
            node.journal.change(change.undone)
        raise
    node.journal.change(change.after)
    return undoing


def _undo(
    node: NodeIO, undoing: Sequence[tuple[NodeChange, Sequence[NodeChange]]], wedged: PCIAddress | None
) -> Iterable[str]:
    for change, back in reversed(undoing):
        if change.device == wedged:
            yield f"{change} ({Wedged.LEFT})"
            continue
        try:
            for each in back:
                do(node, each)
        except (Failed, Refusal) as error:
            yield f"{change} ({error})"


def sysfs_writer(sys: Path, seconds: float = _WRITE_SECONDS) -> Writer:
    """Return a writer below `sys` that does each write in a child process.

    While a device is open its driver may keep the writer in the kernel, where no signal reaches it. After `seconds` the
    child is left behind.
    """

    def write(step: Write) -> None:
        forked(str(step), partial(_write, sys / step.path, step.text), within=seconds, goes_on=True).answer()

    return write


def _write(path: Path, text: str) -> None:
    let_go_of_standard_files()  # the lock stays open, and keeps others out while this hangs
    os.write(os.open(path, os.O_WRONLY), f"{text}\n".encode("ascii"))
