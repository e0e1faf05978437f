"""The one VM of this process, as its threads may know it: who it is, how far it is, and the wish that it ends.

One thread makes it live (launcher.running.run); the control socket's threads ask. Nothing here imports libvirt, and
nothing here waits for it: a question is answered while a start takes minutes.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Self

from launcher.errors import Refusal

if TYPE_CHECKING:
    from launcher.running.events import Changed, Ending, NotStarted, Started

#: What a subscriber may leave unread; beyond that it loses the oldest.
_UNREAD = 256


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
    both are empty where it is the phase that has changed. `lost` counts the changes just before this one that the
    subscriber was too slow for.
    """

    time: float
    phase: Phase
    event: str = ""
    reason: str = ""
    lost: int = 0


class Changes(Iterator[Change]):
    """A subscription: the changes from its making on, each as it comes; ends after ENDED, or when it is closed.

    For one reader, which may wait; close() is for any thread.
    """

    def __init__(self) -> None:
        self._unread: deque[Change] = deque()
        self._lost = 0
        self._closed = False
        self._news = threading.Condition()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __next__(self) -> Change:
        with self._news:
            self._news.wait_for(lambda: self._unread or self._closed)
            if not self._unread:
                raise StopIteration
            change, lost = self._unread.popleft(), self._lost
            self._lost = 0
        return replace(change, lost=lost)

    def close(self) -> None:
        """No more changes come; those that have come can still be read."""
        with self._news:
            self._closed = True
            self._news.notify()

    @property
    def closed(self) -> bool:
        return self._closed

    def add(self, change: Change) -> None:
        """For the VM: one more, without waiting for the reader."""
        with self._news:
            if self._closed:
                return
            if len(self._unread) == _UNREAD:
                self._unread.popleft()
                self._lost += 1
            self._unread.append(change)
            self._closed = change.phase is Phase.ENDED
            self._news.notify()


class VM:
    """What the threads share. All methods may be called from any of them, and none of them waits."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        #: What the thread that makes the VM live waits for.
        self.events: SimpleQueue[StopRequested | Started | NotStarted | Changed | Ending] = SimpleQueue()
        self._lock = threading.Lock()
        self._phase = Phase.PREPARING
        self._domain: Any = None
        self._changes: list[Changes] = []

    @property
    def phase(self) -> Phase:
        return self._phase

    def domain(self) -> Any:
        """The libvirt domain, from define to undefine; Refusal before and after, which names the phase."""
        domain = self._domain
        if domain is None:
            raise Refusal(f"{self.identity} is not defined: it is {self._phase.value}; ask again when it is running")
        return domain

    def request(self, stop: StopRequested) -> None:
        """Have the VM end; returns at once. What is requested before the start prevents it."""
        self.events.put(stop)

    def changes(self) -> Changes:
        """Subscribe to what happens from now on; the first change is the phase as it is."""
        changes = Changes()
        with self._lock:
            changes.add(Change(time.time(), self._phase))
            self._changes.append(changes)
        return changes

    # For launcher.running alone.

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
            self._changes = [changes for changes in self._changes if not changes.closed]
            for changes in self._changes:
                changes.add(change)
