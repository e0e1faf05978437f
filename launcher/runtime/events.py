"""The events for which the thread that runs a VM waits, besides requests to stop: libvirt's progress, each ending."""

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from launcher.runtime.memory_file import Restored
    from launcher.runtime.transfer import Invitation

R = TypeVar("R")


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
    MOVED = 18, "moved: its guest goes on in another pod"

    def __init__(self, code: int, words: str) -> None:
        self.code = code
        self.words = words


@dataclass(frozen=True)
class Defined:
    """libvirt has defined the domain; `domain` is libvirt's object."""

    domain: Any


@dataclass(frozen=True)
class Started:
    """libvirt has started the domain; `restored`: set for a restored domain, whose CPUs are still stopped."""

    restored: "Restored | None" = None


@dataclass(frozen=True)
class NotStarted:
    """libvirt could not define or start the domain: a Refusal, unless the launcher has a defect."""

    error: Exception


class Requested(Generic[R]):
    """A request to the thread that runs the VM; `outcome` is its result."""

    def __init__(self) -> None:
        self.outcome = Future[R]()

    def done(self, result: R) -> None:
        self._tell(lambda: self.outcome.set_result(result))

    def refuse(self, error: Exception) -> None:
        self._tell(lambda: self.outcome.set_exception(error))

    def _tell(self, tell: Callable[[], None]) -> None:
        with suppress(InvalidStateError):  # who has asked waits no longer
            tell()


class SuspendRequested(Requested[None]):
    """A request to suspend the VM."""


class SendRequested(Requested[None]):
    """A request to send the guest to the launcher at an IP address, which has given the invitation."""

    def __init__(self, address: str, invitation: "Invitation") -> None:
        super().__init__()
        self.address, self.invitation = address, invitation


class ReceiveRequested(Requested["Invitation"]):
    """A request to take a guest from another launcher, on this port of all addresses; 0 is any free one."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port


class TakeRequested(Requested[None]):
    """A request to let the guest run that another launcher has sent: it runs nowhere else."""


@dataclass(frozen=True)
class Arrived:
    """The guest of another launcher is completely here; it still runs there, or will."""


@dataclass(frozen=True)
class NotArrived:
    """The guest of another launcher has not come, and goes on there."""

    error: Exception


@dataclass(frozen=True)
class Saved:
    """The memory of a VM that is being suspended or moved is completely on disk, or in the other launcher's QEMU; its
    guest is stopped."""


@dataclass(frozen=True)
class NotSaved:
    """The VM could not be suspended or moved, and its guest goes on."""

    error: Exception


@dataclass(frozen=True)
class Changed:
    """The guest may have been paused or resumed; libvirt knows."""
