"""The events for which the thread that runs a VM waits, besides endings and requests to stop: libvirt's progress, and
what is asked of a suspension or a move."""

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from launcher.runtime.memory_file import Restored
    from launcher.runtime.transfer import Invitation

R = TypeVar("R")


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
