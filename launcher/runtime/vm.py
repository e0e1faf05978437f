"""The one VM of this process, as its threads may know it: who it is, how far it is, and the wish that it ends.

One thread makes it live (launcher.runtime.run); the control socket's threads ask. Nothing here imports libvirt, and
nothing here waits for it: a question is answered while a start takes minutes.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from program.errors import Refusal

if TYPE_CHECKING:
    from launcher.runtime.events import Changed, Defined, Ending, NotStarted, Started


class Phase(Enum):
    """How far a VM is. It never goes back; a guest that is paused is RUNNING, and libvirt's state says the rest."""

    PREPARING = "preparing"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class StopRequested(Enum):
    """Somebody wants the VM to end.

    SIGNAL and SHUTDOWN ask the guest and end it after its grace period; KILL ends it at once, also after the others.
    """

    SIGNAL = "signal"
    SHUTDOWN = "shutdown"
    KILL = "kill"


@dataclass(frozen=True)
class Identity:
    """`uid` is empty where the manifest has none."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Change:
    """Something has happened, at `time` (seconds since 1970, UTC), after which the VM is in `phase`.

    `event` and `reason` are libvirt's lifecycle event in words, like "suspended" and "paused" (virDomainEventType);
    both are empty where it is the phase that has changed.
    """

    time: float
    phase: Phase
    event: str = ""
    reason: str = ""


class VM:
    """What the threads share. All methods may be called from any of them, and none of them waits."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        #: What the thread that makes the VM live waits for.
        self.events: SimpleQueue[StopRequested | Defined | Started | NotStarted | Changed | Ending] = SimpleQueue()
        self._lock = threading.Lock()
        self._phase = Phase.PREPARING
        self._domain: Any = None
        self._subscribers: list[Callable[[Change], object]] = []

    @property
    def phase(self) -> Phase:
        return self._phase

    def domain(self) -> Any:
        """The libvirt domain, from define to undefine; Refusal before and after, which names the phase."""
        domain = self._domain
        if domain is None:
            raise Refusal(self.identity, f"is {self._phase.value}, and not defined", "ask again when it is running")
        return domain

    def request(self, stop: StopRequested) -> None:
        """Have the VM end; returns at once. What is requested before the start prevents it."""
        self.events.put(stop)

    @contextmanager
    def telling(self, subscriber: Callable[[Change], object]) -> Iterator[None]:
        """The subscriber is told every change within, from the phase as it is on.

        It is called in the thread that changes something, once at a time, and must not wait.
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
        """It is in this phase now."""
        with self._lock:
            self._phase = phase
        self.happened()

    @contextmanager
    def having(self, domain: Any) -> Iterator[None]:
        """Its domain is defined, within."""
        self._domain = domain
        try:
            yield
        finally:
            self._domain = None

    def happened(self, event: str = "", reason: str = "") -> None:
        """Tell the subscribers."""
        with self._lock:
            change = Change(time.time(), self._phase, event, reason)
            for subscriber in self._subscribers:
                subscriber(change)
