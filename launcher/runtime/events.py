"""The events for which the thread that runs a VM waits, besides requests to stop: libvirt's progress, each ending."""

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.runtime.memory_file import GuestMark


class Ending(Enum):
    """How a VM ended: the exit code of `run`, and the words of its last line."""

    POWERED_OFF = 0, "the guest has powered itself off"
    ON_REQUEST = 0, "as requested"
    NOT_STARTED = 0, "the stop came before it had started"
    REBOOTED = 10, "the guest has rebooted, and its rebootPolicy is Terminate"
    PANICKED = 11, "the guest's system has panicked"
    QEMU_DIED = 12, "QEMU was killed (by the kernel, when memory is short) or has crashed; its last words are above"
    TAKEN = 13, "another client of libvirt has destroyed, saved or migrated it"
    CONNECTION_LOST = 14, "the connection to libvirt is lost; what becomes of the guest is for that libvirt to say"
    FILES_LOST = 15, "virtiofsd was killed or has crashed, and the guest has lost the volume that the lines above name"

    INTERRUPTED = 16, "it was to run to the guest's own end, and was asked to end before"
    SUSPENDED = 17, "suspended: its memory is on its claim, and its next pod resumes it"

    def __init__(self, code: int, words: str) -> None:
        self.code = code
        self.words = words


@dataclass(frozen=True)
class Defined:
    """libvirt has defined the domain; `domain` is libvirt's object."""

    domain: Any


@dataclass(frozen=True)
class Started:
    """libvirt has started the domain; `mark`: set for a restored domain, whose CPUs are still stopped."""

    mark: "GuestMark | None" = None


@dataclass(frozen=True)
class NotStarted:
    """libvirt could not define or start the domain: a Refusal, unless the launcher has a defect."""

    error: Exception


class SuspendRequested:
    """A request to suspend the VM; `outcome` is its result."""

    def __init__(self) -> None:
        self.outcome = Future[None]()

    def done(self) -> None:
        self._tell(lambda: self.outcome.set_result(None))

    def refuse(self, error: Exception) -> None:
        self._tell(lambda: self.outcome.set_exception(error))

    def _tell(self, tell: Callable[[], None]) -> None:
        with suppress(InvalidStateError):  # who has asked waits no longer
            tell()


@dataclass(frozen=True)
class Saved:
    """The memory of a VM that is being suspended is completely on disk; its guest is stopped."""


@dataclass(frozen=True)
class NotSaved:
    """The VM could not be suspended, and its guest goes on."""

    error: Exception


@dataclass(frozen=True)
class Changed:
    """The guest may have been paused or resumed; libvirt knows."""
