"""The one VM of this process, as its threads share it: its identity, its phase, and requests to end it.

One thread runs it (launcher.runtime.run); the threads of the control socket ask. Nothing here imports libvirt or waits
for it: a question is answered while a start takes minutes.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from program.errors import Refusal

if TYPE_CHECKING:
    from launcher.runtime.events import (
        Arrived,
        Changed,
        Defined,
        NotArrived,
        NotSaved,
        NotStarted,
        Requested,
        Saved,
        Started,
    )
    from program.ending import Ending


class Phase(Enum):
    """A VM's phase, which never goes back. A paused guest is RUNNING; libvirt's state says that it is paused."""

    PREPARING = "preparing"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class StopRequested(Enum):
    """A request to end the VM. SIGNAL, INTERRUPT (the first Ctrl-C) and SHUTDOWN ask the guest, and end it after its
    grace period; KILL ends it at once, also after the others.
    """

    SIGNAL = "signal"
    INTERRUPT = "interrupt"
    SHUTDOWN = "shutdown"
    KILL = "kill"


@contextmanager
def having_threads(what: str) -> Iterator[None]:
    """Raise Refusal if the block cannot start a thread for `what`: a container's limits may forbid it."""
    try:
        yield
    except RuntimeError as error:
        fix = "expected room for more of them in the container's limits of processes and memory"
        raise Refusal(what, f"cannot have a thread: {error}", fix) from error


@dataclass(frozen=True)
class VMIdentity:
    """The VM's namespace, name and `uid`, which is empty if the manifest has none."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Change:
    """An event at `time` (seconds since 1970, UTC), and the `phase` in which the VM is then. `event` and `reason` are
    libvirt's lifecycle event in words, like "suspended" and "paused" (virDomainEventType); both are empty if the phase
    has changed.
    """

    time: float
    phase: Phase
    event: str = ""
    reason: str = ""


class VM:
    """The state that the threads share. Any thread may call any method; no method waits. `numbers`, `asks_nvidia_smi`
    and `fabric_manager` are the plan's."""

    def __init__(
        self,
        identity: VMIdentity,
        numbers: Mapping[int, int] | None = None,
        *,
        asks_nvidia_smi: bool = False,
        fabric_manager: str | None = None,
    ) -> None:
        self.identity = identity
        self.numbers: Mapping[int, int] = numbers or {}
        self.asks_nvidia_smi = asks_nvidia_smi
        self.fabric_manager = fabric_manager
        #: What the thread that runs the VM waits for.
        self.events: SimpleQueue[
            StopRequested
            | Defined
            | Started
            | NotStarted
            | Changed
            | Requested[Any]
            | Arrived
            | NotArrived
            | Saved
            | NotSaved
            | Ending
        ] = SimpleQueue()
        #: Whether the guest comes, or has come, from another launcher.
        self.takes_guest = False
        self._lock = threading.Lock()
        self._is_suspended = False
        self._changing = 0  # calls that change whether the guest's CPUs run
        self._phase = Phase.PREPARING
        self._domain: Any = None
        self._subscribers: list[Callable[[Change], object]] = []

    @property
    def phase(self) -> Phase:
        return self._phase

    def domain(self) -> Any:
        """Return the libvirt domain; Refusal, with the phase, before it is defined and after its end."""
        domain = self._domain
        if domain is None:
            raise Refusal(self.identity, f"is {self._phase.value}, and not defined", "ask again when it is running")
        return domain

    def request(self, stop: StopRequested) -> None:
        """Request the VM's end. A request before the start prevents it."""
        self.events.put(stop)

    def take_cpus(self) -> None:
        """Take the sole right to change whether the guest's CPUs run, until release_cpus(): a guest that is resumed
        while its memory is saved would run twice. Refusal while somebody else changes it."""
        with self._lock:
            if self._is_suspended or self._changing:
                wrong = "cannot be suspended: it is being suspended, paused, resumed or reset"
                raise Refusal(self.identity, wrong, "ask again when that is done")
            self._is_suspended = True

    def release_cpus(self) -> None:
        with self._lock:
            self._is_suspended = False

    @contextmanager
    def changing_cpus(self, what: str) -> Iterator[None]:
        """Change whether the guest's CPUs run, a right that others may share; Refusal while take_cpus() holds it."""
        with self._lock:
            if self._is_suspended:
                raise Refusal(self.identity, f"cannot be {what}: it is being suspended", "ask again when that is done")
            self._changing += 1
        try:
            yield
        finally:
            with self._lock:
                self._changing -= 1

    @contextmanager
    def telling(self, subscriber: Callable[[Change], object]) -> Iterator[None]:
        """Call the subscriber with the present phase, and then with each change, in the thread that makes the change.
        It must not wait.
        """
        with self._lock:
            subscriber(Change(time.time(), self._phase))
            self._subscribers.append(subscriber)
        try:
            yield
        finally:
            with self._lock:
                self._subscribers.remove(subscriber)

    # For launcher.runtime alone.

    def becomes(self, phase: Phase) -> None:
        """Set the phase, and report it to the subscribers."""
        with self._lock:
            self._phase = phase
        self.happened()

    @contextmanager
    def holding_domain(self, domain: Any) -> Iterator[None]:
        """Have domain() return this one inside the block."""
        self._domain = domain
        try:
            yield
        finally:
            self._domain = None

    def happened(self, event: str = "", reason: str = "") -> None:
        """Report the event to the subscribers."""
        with self._lock:
            change = Change(time.time(), self._phase, event, reason)
            for subscriber in self._subscribers:
                subscriber(change)
