"""Suspends or moves a running VM: its guest stops, its memory goes to a file or to another launcher, and the guest
goes on only if that fails.

The thread that runs the VM stays free for other events. Another thread calls libvirt, with the sole right to change
whether the guest's CPUs run, which it gives back if the guest goes on.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any, Protocol
from xml.etree import ElementTree

from launcher.runtime import agent, guest, operations, saving
from launcher.runtime.events import Changed, NotSaved, Requested, Saved
from launcher.runtime.memory_file import GuestMark, MemoryFile, Restored
from launcher.runtime.progress import wanted_by
from launcher.runtime.suspendable import SHARE_OF_GRACE, ends_with_pod, not_saved
from launcher.runtime.vm import VM, Phase, StopRequested, having_threads
from launcher.vm.volumes.media import Need, RawDisk
from program.ending import Ending
from program.errors import ProgramError, Refusal

_log = logging.getLogger(__name__)

_LOOKS = 1.0  # seconds between two looks at how far it is
#: Seconds in which neither the file grows nor libvirt tells of more that is done: then the guest goes on.
_STALLED = 120.0
_GOING_ON = 30.0  # seconds for QEMU to let a guest run whose memory is there
_GO_ON_AGAIN = (1, 2, *(5,) * 120)  # seconds between tries
_BOOTS = "its next start boots it"
_CLOCK_FOR, _CLOCK_AGAIN = 120.0, 5.0  # seconds for the guest's agent to take the time, and between two tries

#: Files in the root of libvirt's driver, which lives as long as the pod: the VM was suspended in this pod, or moved out
#: of it, and a container that the kubelet starts again is not to run it.
_MARKS = {Ending.SUSPENDED: "suspended", Ending.MOVED: "moved"}


def ended_before(root: Path) -> Ending | None:
    """Return how the VM has left this pod before; None if it has not."""
    return next((ending for ending, name in _MARKS.items() if (root / name).exists()), None)


def mark(root: Path, ending: Ending) -> None:
    """Have no other container of this pod run the VM. OSError if the mark cannot be written."""
    (root / _MARKS[ending]).touch()


class Destination(Protocol):
    """Where the memory of a guest goes. Each method raises Refusal if it fails; then the guest goes on."""

    ending: Ending

    def begin(self, domain: Any, mark: GuestMark, memory: int) -> None:
        """Prepare for a guest with so many bytes of memory, which still runs."""

    def save(self, domain: Any, mark: GuestMark) -> None:
        """Save a paused domain. When this returns, its guest is never to run here again."""

    def drop(self) -> None:
        """Forget what there is of a guest that goes on here."""

    def written(self) -> int:
        """Return the number of bytes that are there by now."""


class ToClaim:
    """The memory file on a claim."""

    ending = Ending.SUSPENDED

    def __init__(self, memory: MemoryFile) -> None:
        self._memory = memory
        self.drop, self.written = memory.drop, memory.written

    def begin(self, domain: Any, mark: GuestMark, memory: int) -> None:
        self._memory.begin(memory)

    def save(self, domain: Any, mark: GuestMark) -> None:
        saving.save(domain, self._memory.half, mark)
        self._memory.finish()


@dataclass(frozen=True)
class Suspension:
    """What suspending a VM needs: its memory file, None without a claim; the domain's XML, the directory for /sys, the
    root of libvirt's driver, the seconds that the guest has once its pod is to end, and whether its memory is saved
    then (`on_drain`)."""

    memory: MemoryFile | None
    xml: str
    sys: Path
    root: Path
    grace: float
    on_drain: bool

    @property
    def saves_within(self) -> float:
        """Return the seconds in which a guest is saved whose pod is to end."""
        return self.grace * SHARE_OF_GRACE

    def refuse_new_disks(self, needs: Iterable[Need], *, comes: bool) -> None:
        """Raise Refusal if a guest that is suspended, or `comes` from another launcher, would go on with a disk that
        this start makes anew: what its memory knows of the old one would destroy the new one."""
        where = "another pod" if comes else None if self.memory is None else str(self.memory.whole)
        if where is None or not (comes or os.path.lexists(where)):
            return
        new = [str(need.path) for need in needs if isinstance(need, RawDisk)]
        new += [problem.subject for problem in ends_with_pod(ElementTree.fromstring(self.xml))]  # noqa: S314 it is ours
        if new:
            wrong = f"would be a new disk for the suspended guest of {where}, which had another one"
            fix = "resume it with the manifest, and on a node, that have its disk; or remove the file: it starts anew"
            raise Refusal(new[0], wrong, fix)


def suspend(
    domain: Any,
    vm: VM,
    its: Suspension | None,
    request: Requested[None],
    to: Destination | None,
    stop: Callable[[float], Ending],
    ready: Callable[[bool], None],
    *,
    drains: bool = False,
) -> Ending | None:
    """Save the VM `to` there; return how it ended, None if its guest goes on. The request gets the outcome.

    If a stop is requested meanwhile, saving has the guest's grace period. If saving fails then, `stop` shuts the guest
    down in the time that is left. `drains`: the stop came first, and saving leaves the guest time to shut down.
    """
    if its is None or to is None:
        fix = "expected the annotation gpu-launcher.dev/suspend-to in its manifest, with the name of one"
        request.refuse(Refusal(vm.identity, "has no claim for its memory", fix))
        return None
    saver = _Saver(domain, vm, its, to)
    try:
        with having_threads("suspend"):
            saver.start()
    except Refusal as refusal:
        request.refuse(refusal)
        return stop(its.grace) if drains else None
    began = time.monotonic()
    ends = began + its.grace if drains else None  # when the guest's grace period is over
    gives_up = began + its.saves_within if drains else None
    is_broken_off = False
    watch = _Watch(to, domain)
    while True:
        try:
            event = vm.events.get(timeout=_LOOKS)
        except Empty:
            if ends is not None and time.monotonic() > ends:
                vm.becomes(Phase.STOPPING)
                request.refuse(Refusal(vm.identity, "was to end before its memory was saved", _BOOTS))
                _log.error("the guest's memory is not saved within its grace period; ending it")
                return Ending.ON_REQUEST
            is_late = gives_up is not None and time.monotonic() > gives_up
            if (watch.has_stalled() or is_late) and not is_broken_off:
                is_broken_off = True
                why = "its pod is to end soon" if is_late else f"nothing was written for {_STALLED:.0f} s"
                _log.error("giving up saving the guest's memory: %s", why)
                threading.Thread(target=_break_off, args=(domain,), daemon=True).start()
            continue
        match event:
            case Saved():
                vm.becomes(Phase.STOPPING)
                if to.ending is Ending.SUSPENDED and not drains:  # a moved guest's mark comes before its target's
                    _mark(its.root, to.ending)
                request.done(None)
                return to.ending
            case NotSaved(error):
                request.refuse(error)
                _log.error("%s", error)
                vm.events.put(Changed())
                if ends is None:
                    return None
                vm.becomes(Phase.STOPPING)
                return stop(max(0.0, ends - time.monotonic()))
            case StopRequested.KILL:
                vm.becomes(Phase.STOPPING)
                request.refuse(Refusal(vm.identity, "was ended before its memory was saved", _BOOTS))
                return Ending.ON_REQUEST
            case StopRequested():
                ends = ends or time.monotonic() + its.grace
            case Ending() as ending:
                request.refuse(Refusal(vm.identity, f"has ended before its memory was saved: {ending.words}", _BOOTS))
                return ending
            case Requested() as other:
                other.refuse(Refusal(vm.identity, "is being suspended or moved already", "wait until it has ended"))
            case Changed():
                ready(False)


class _Saver(threading.Thread):
    """Saves the domain, and puts the event Saved, or NotSaved once the guest goes on."""

    def __init__(self, domain: Any, vm: VM, its: Suspension, to: Destination) -> None:
        super().__init__(name="suspend", daemon=True)
        self._domain, self._vm, self._its, self._to = domain, vm, its, to

    def run(self) -> None:
        domain, vm, to = self._domain, self._vm, self._to
        try:
            vm.take_cpus()
        except Refusal as refusal:
            vm.events.put(NotSaved(refusal))
            return
        stopped_by_us = False
        try:
            problems = (*not_saved(self._its.xml, self._its.sys), *saving.kept_back(domain))
            if problems:
                raise Refusal.of(problems)
            mark = saving.mark_of(domain, ran=guest.runs(domain))
            to.begin(domain, mark, wanted_by(self._its.xml).memory)
            stopped_by_us = mark.ran
            operations.pause(domain)
            to.save(domain, mark)
        except Exception as error:
            to.drop()
            goes_on = not stopped_by_us or self._goes_on()
            if goes_on:
                vm.release_cpus()
            vm.events.put(NotSaved(error))
            if not goes_on:
                self._go_on_later()
                vm.release_cpus()
        else:
            vm.events.put(Saved())

    def _goes_on(self) -> bool:
        try:
            operations.resume(self._domain)
        except ProgramError as error:
            _log.error("the guest stays paused: %s", error)
            return False
        return True

    def _go_on_later(self) -> None:
        """Try again: a launcher that was to have the guest may keep its disks until that has ended."""
        for wait in _GO_ON_AGAIN:
            time.sleep(wait)
            if self._vm.phase is not Phase.RUNNING or self._goes_on():
                return


class _Watch:
    """Tells whether saving makes progress: the file grows, or libvirt, asked in threads, reports more as done."""

    def __init__(self, to: Destination, domain: Any) -> None:
        self._to, self._domain = to, domain
        self._now = self._seen = (0, 0)
        self._since = time.monotonic()
        self._asking: threading.Thread | None = None

    def has_stalled(self) -> bool:
        if self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(target=self._ask, daemon=True)
            with suppress(RuntimeError):
                self._asking.start()
        if self._now != self._seen:
            self._seen, self._since = self._now, time.monotonic()
        return time.monotonic() - self._since > _STALLED

    def _ask(self) -> None:
        with suppress(ProgramError):
            self._now = self._to.written(), saving.progress(self._domain)


def resume(domain: Any, restored: Restored) -> None:
    """Let a restored guest run, and forget its file: from then on the guest exists only here.

    Raise Refusal if it cannot run, or QEMU does not answer; then the domain is ended, and the file stays. A stop that
    is requested meanwhile is served afterwards.
    """
    outcome = Future[None]()

    def go_on() -> None:
        try:
            _go_on(domain, restored.memory, restored.mark)
        except Exception as error:
            guest.end(domain)
            outcome.set_exception(error)
        else:
            outcome.set_result(None)

    with having_threads("resume"):
        threading.Thread(target=go_on, name="resume", daemon=True).start()
    try:
        outcome.result(_GOING_ON)
    except TimeoutError as error:
        wrong = f"has not let the guest run in {_GOING_ON:.0f} s, and its memory is in {restored.memory.directory}"
        raise Refusal("QEMU", wrong, "its log says more") from error
    threading.Thread(target=_tell_time, args=(domain,), name="clock", daemon=True).start()


def _go_on(domain: Any, memory: MemoryFile, mark: GuestMark) -> None:
    memory.claim()
    if mark.ran:
        try:
            operations.resume(domain)
        except ProgramError:
            if operations.state(domain).state == "paused":
                guest.end(domain)
                memory.give_back()
            raise
    try:
        memory.forget()
    except Refusal as refusal:  # the guest runs; the next start says it again
        _log.error("%s", refusal)


def _tell_time(domain: Any) -> None:
    """Have the guest's agent set the guest's clock, which stood still meanwhile."""
    deadline = time.monotonic() + _CLOCK_FOR
    refusal: ProgramError | None = None
    while time.monotonic() < deadline:
        try:
            agent.set_time(lambda text: guest.ask_agent(domain, text, 4), time.time_ns())
        except ProgramError as error:
            refusal = error
            time.sleep(_CLOCK_AGAIN)
        else:
            _log.info("the guest's clock is set")
            return
    _log.warning("the guest's clock may be late by the time for which it was suspended: %s", refusal)


def _mark(root: Path, ending: Ending) -> None:
    try:
        mark(root, ending)
    except OSError as error:
        _log.error("%s: %s; a container that is started again resumes the guest", root, error.strerror)


def _break_off(domain: Any) -> None:
    try:
        saving.break_off(domain)
    except ProgramError as error:
        _log.error("%s", error)
