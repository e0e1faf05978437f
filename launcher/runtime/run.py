"""The life of one VM, from its plan to its end: what `gpu-launcher run` does.

The thread that runs the VM waits only for VM.events, with a deadline. libvirt, which waits for QEMU, is called in other
threads: one has the connection and the domain from define to undefine, and each question has a thread of its own.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from launcher.runtime import credentials, guest, saving, suspension, virtiofs
from launcher.runtime.embedded import called_for_passt, has_qemu_here, prepared, root_of
from launcher.runtime.events import (
    Changed,
    Defined,
    NotStarted,
    Requested,
    SendRequested,
    Started,
    SuspendRequested,
    TakeRequested,
)
from launcher.runtime.hostdevs import Hostdev
from launcher.runtime.memory_file import MemoryFile, Restored
from launcher.runtime.moving import Arrival, ToPeer, has_arrived
from launcher.runtime.plan import RunPlan
from launcher.runtime.preparation import StartPreparation
from launcher.runtime.progress import read_progress, wanted_by, words
from launcher.runtime.qemu_log import printed, repeated
from launcher.runtime.sockets import readiness, socket_directory
from launcher.runtime.suspension import Suspension
from launcher.runtime.user import let_lock
from launcher.runtime.vm import VM, Phase, StopRequested, having_threads
from launcher.vm.volumes.media import making_media, refuse_links
from program.ending import Ending
from program.errors import ProgramError, Refusal

_log = logging.getLogger(__name__)

_ASK_AGAIN = 5.0  # seconds between two ACPI power buttons: a guest that is still booting misses the first
_PATIENCE = 3.0  # seconds for libvirt to answer a question; the VM goes on without the answer
_TELL_EVERY = 5.0  # seconds between two lines of the log while a start goes on, which takes as long as it takes
_START_GIVEN_UP = 5.0  # seconds for libvirt to notice that the QEMU which it is starting is gone
_PREPARING_GIVEN_UP = 5.0  # seconds for libvirt to return from what it does before the start
#: Seconds for libvirt to end the domain: it gives QEMU 10 to end by itself and waits 30 for the kernel to take back
#: what VFIO has pinned (virProcessKillPainfullyDelay). The supervisor has 40, and the kubelet 45.
_ENDED = 35.0

#: Is told whether the guest runs.
Ready = Callable[[bool], None]
T = TypeVar("T")


def run(
    plan: RunPlan, vm: VM, served: AbstractContextManager[None], preparation: StartPreparation | None = None
) -> Ending:
    """Define and start the domain, stay until it ends, and remove everything that belongs to it. Raise Refusal for what
    libvirt refuses. The VM is `served` until it has ended.

    A requested stop asks the guest to shut down, and ends it after its grace period: at once if the request says so, or
    if the guest has no ACPI. Before the start it prevents the start. If libvirt does not answer, its QEMU ends with
    this process.
    """
    preparation = preparation or StartPreparation()
    let_lock(plan.locked)  # as the planner did (launcher.pipeline.this_pod), in a process that has ended
    its = _suspension(plan)
    with preparation.root or _root(plan), served:
        try:
            if its is not None and (ending := suspension.ended_before(its.root)) is not None:
                return ending
            if its is not None:
                its.refuse_new_disks(plan.needs, comes=plan.receives and not has_arrived(its.root))
            lost = partial(vm.events.put, Ending.FILES_LOST)
            with _files(plan) as ready, virtiofs.serving_shares(plan.shares, lost):
                return _live(plan, vm, ready, preparation, its)
        finally:
            vm.becomes(Phase.ENDED)


def _suspension(plan: RunPlan) -> Suspension | None:
    root = root_of(plan.uri)
    if root is None:
        return None
    memory = None if plan.suspend_to is None else MemoryFile(plan.suspend_to, plan.identity.name)
    return Suspension(memory, plan.xml, plan.sys, root, plan.grace, plan.suspends_on_drain)


def tidy(plan: RunPlan) -> None:
    """Remove what run() would have removed if its process had not been killed."""
    with _root(plan):
        with _files(plan):
            virtiofs.forget(plan.shares)
        if root_of(plan.uri) is not None:
            with guest.connected(plan.uri, VM(plan.identity)) as connection:
                guest.forget(connection, plan.domain, plan.xml)


def _root(plan: RunPlan) -> AbstractContextManager[None]:
    """Lock the root of the embedded driver; do nothing for another libvirt."""
    root = root_of(plan.uri)
    return nullcontext() if root is None else prepared(root)


@contextmanager
def _files(plan: RunPlan) -> Iterator[Ready]:
    """Make the files that the domain needs and libvirt does not make."""
    root = root_of(plan.uri)
    with (
        making_media(plan.needs),
        called_for_passt(root, plan.passt) if root is not None and plan.passt is not None else nullcontext(),
        socket_directory(plan.sockets) if has_qemu_here(plan.uri) else nullcontext(),
        repeated(root, plan.domain) if root is not None else nullcontext(),
        readiness(root) if root is not None else nullcontext(_nobody_asks) as ready,
    ):
        yield ready


def _nobody_asks(runs: bool) -> None:
    """Ignore the readiness of a domain in another libvirt."""


class _Session:
    """The connection and the domain, in a thread of their own, which puts the event Defined, or NotStarted."""

    def __init__(self, plan: RunPlan, vm: VM, preparation: StartPreparation) -> None:
        self._plan, self._vm, self._preparation = plan, vm, preparation
        self._left = threading.Event()
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="libvirt", daemon=True)
        with having_threads("libvirt"):
            self._thread.start()

    def leave(self, seconds: float, *, ends: bool) -> None:
        """Have the thread end the domain, if it `ends`, and undefine it; wait at most so many seconds. Only the first
        call counts."""
        if self._left.is_set():
            return
        self._ends = ends
        self._left.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            _log.error("libvirt does not answer; what it has of %s ends with this process", self._plan.domain)

    def _run(self) -> None:
        try:
            self._have_domain()
        except Exception as error:
            if self._left.is_set():
                _log.error("%s", error)
            self._vm.events.put(NotStarted(error))

    def _have_domain(self) -> None:
        plan, vm = self._plan, self._vm
        self._preparation.wait_for_libvirt()
        with guest.connected(plan.uri, vm) as connection:
            if root_of(plan.uri) is not None:  # a domain there is what a killed launcher has left
                guest.forget(connection, plan.domain, plan.xml)
            if self._left.is_set():
                return
            guest.refuse_unknown_names(connection, plan.xml)
            refuse_links(plan.needs)
            with (
                guest.defined(connection, plan.xml, vm) as domain,
                credentials.keeping_credentials(domain, plan.credentials),
            ):
                guest.give_iommufd(domain, plan.xml, self._preparation.iommufd)
                vm.events.put(Defined(domain))
                self._left.wait()
                if self._ends:
                    guest.end(domain)


def _live(plan: RunPlan, vm: VM, ready: Ready, preparation: StartPreparation, its: Suspension | None) -> Ending:
    session = _Session(plan, vm, preparation)
    try:
        domain = _defined(vm, plan.domain)
        if isinstance(domain, Ending):
            return domain
        _log.info("%s is defined on %s", plan.domain, plan.uri, extra={"domain": plan.domain})
        with vm.holding_domain(domain):
            try:
                arrival = None
                if its is not None and plan.receives:
                    arrival = Arrival(its.root, domain, plan)
                    if not has_arrived(its.root) and (ending := arrival.wait(vm)) is not None:
                        return ending
                return _start(domain, plan, vm, its, arrival) or _stay(domain, plan, vm, ready, its)
            finally:
                ready(False)
                # What has not started is not ours to end.
                session.leave(_ENDED, ends=vm.phase is not Phase.STARTING)
    finally:
        session.leave(_PREPARING_GIVEN_UP, ends=False)


def _defined(vm: VM, name: str) -> Any:
    """Return the domain, or how the VM ended if a stop comes first. Raise the error if libvirt cannot define it."""
    domain, waiting = None, _Waiting(vm, name, lambda: "libvirt looks at QEMU")
    while domain is None or not vm.events.empty():
        match waiting.event():
            case Defined(defined):
                domain = defined
            case NotStarted(error):
                raise error
            case StopRequested():
                return Ending.NOT_STARTED
            case Ending() as ending:
                return ending
    return domain


def _start(domain: Any, plan: RunPlan, vm: VM, its: Suspension | None, arrival: Arrival | None) -> Ending | None:
    """Start the domain; return None once it runs, or how it ended. Raise the error if libvirt cannot start it."""
    vm.becomes(Phase.STARTING)
    root = root_of(plan.uri)
    quoted = partial(printed, root, plan.domain) if root is not None else str
    how_far = (lambda: words(read_progress(root, plan.domain), wanted_by(plan.xml))) if root is not None else str
    waiting = _Waiting(vm, plan.domain, how_far)

    def restore() -> Restored | None:
        if arrival is not None and (restored := arrival.restored()) is not None:
            return restored
        return None if its is None or its.memory is None else saving.restore(domain, plan.xml, its.memory)

    guest.start(domain, vm, paused=plan.paused, printed=quoted, restore=restore)
    ending = None
    while True:
        match waiting.event():
            case Started(restored):
                if restored is not None:
                    suspension.resume(domain, restored)
                    _log.info("%s goes on from %s", plan.domain, restored.memory.whole, extra={"domain": plan.domain})
                vm.becomes(Phase.RUNNING)
                return ending
            case NotStarted(error):
                raise error
            case StopRequested():
                if arrival is not None:
                    arrival.give_up()
                return _give_up(domain, vm)
            case TakeRequested() as request if arrival is not None:
                arrival.take(request)
            case Requested() as other:
                other.refuse(Refusal(vm.identity, "is starting", "ask again when it is running"))
            case Ending() as reported:
                ending = reported


class _Waiting:
    """Waits for the VM's events as long as it takes, and logs how far the start is meanwhile."""

    def __init__(self, vm: VM, name: str, how_far: Callable[[], str]) -> None:
        self._vm, self._name, self._how_far = vm, name, how_far
        self._began = time.monotonic()
        self._telling: threading.Thread | None = None

    def event(self) -> Any:
        while True:
            try:
                event = self._vm.events.get(timeout=_TELL_EVERY)
            except Empty:
                if self._telling is None or not self._telling.is_alive():
                    self._telling = _in_a_thread(self._tell)
                continue
            if self._telling is not None:  # its line is not to come behind the last one
                self._telling.join(_PATIENCE)
            return event

    def _tell(self) -> None:
        took = time.monotonic() - self._began
        far = self._how_far()
        _log.info(
            "%s has been starting for %.0f s%s",
            self._name,
            took,
            f": {far}" if far else "",
            extra={"domain": self._name},
        )


def _give_up(domain: Any, vm: VM) -> Ending:
    """End a QEMU that is still starting. Its guest has written nothing yet, so it is not asked to shut down."""
    vm.becomes(Phase.STOPPING)
    _log.info("ending QEMU, which is being started")
    _in_a_thread(lambda: guest.end(domain))
    deadline = time.monotonic() + _START_GIVEN_UP
    while True:
        try:
            event = vm.events.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            _log.error("libvirt is still starting the domain; its QEMU is ended with this process")
            break
        if isinstance(event, Started | NotStarted):
            break
    return Ending.NOT_STARTED


def _stay(domain: Any, plan: RunPlan, vm: VM, ready: Ready, its: Suspension | None) -> Ending:
    """Wait until the domain ends, by itself or as requested."""
    shut_down = partial(_stop, domain, vm, ready=ready)
    ready(_runs(domain))
    waits = ", paused: gpu-launcher ctl resume" if plan.paused else ""
    _log.info("%s is running%s", plan.domain, waits, extra={"domain": plan.domain})
    nothing: tuple[Hostdev, ...] = ()
    for device in _answer(lambda: _hostdevs(domain, plan.numbers), nothing):
        _log.info("%s", device, extra={"domain": plan.domain, "device": device.host})
    while True:
        match vm.events.get():
            case Ending.FILES_LOST if plan.acpi:  # the guest still has its disks, and may have to write to them
                vm.becomes(Phase.STOPPING)
                shut_down(plan.grace)
                return Ending.FILES_LOST
            case Ending() as ending:
                return ending
            case StopRequested.SIGNAL if its is not None and its.on_drain:
                _log.info("suspending the guest; it has %.0f s of its grace period for that", its.saves_within)
                drain = SuspendRequested()
                to = _destination(drain, plan, its)
                suspended = suspension.suspend(domain, vm, its, drain, to, shut_down, ready, drains=True)
                if suspended is not None:
                    return suspended
            case StopRequested() as stop:
                vm.becomes(Phase.STOPPING)
                at_once = stop is StopRequested.KILL or not plan.acpi
                if stop is StopRequested.INTERRUPT and not at_once:
                    _log.info("another Ctrl-C ends the guest now")
                return shut_down(0 if at_once else plan.grace)
            case SuspendRequested() | SendRequested() as request:
                to = _destination(request, plan, its)
                if (saved := suspension.suspend(domain, vm, its, request, to, shut_down, ready)) is not None:
                    return saved
            case TakeRequested() as taken if vm.takes_guest:
                taken.done(None)  # it runs already
            case Requested() as other:
                other.refuse(
                    Refusal(vm.identity, "is running, and takes no guest", "ask one of gpu-launcher run --receive")
                )
            case Changed():
                ready(_runs(domain))


def _destination(
    request: SuspendRequested | SendRequested, plan: RunPlan, its: Suspension | None
) -> suspension.Destination | None:
    if its is None:
        return None
    if isinstance(request, SendRequested):
        return ToPeer(request.address, request.invitation, its.root, plan.xml)
    return None if its.memory is None else suspension.ToClaim(its.memory)


def _stop(domain: Any, vm: VM, grace: float, ready: Ready) -> Ending:
    """Ask the guest to shut down, again and again for `grace` seconds; the caller ends a guest that still runs then."""
    deadline = time.monotonic() + grace
    ask = time.monotonic()
    asking: threading.Thread | None = None
    while (left := deadline - time.monotonic()) > 0:
        if time.monotonic() >= ask:
            ask = time.monotonic() + _ASK_AGAIN
            if asking is None or not asking.is_alive():
                _log.info("asking the guest to shut down; it has %.0f s left", left)
                asking = _in_a_thread(lambda: guest.ask_to_shut_down(domain))
            else:
                _log.warning("QEMU has not answered since it was asked; it has %.0f s left", left)
        try:
            event = vm.events.get(timeout=max(0.0, min(ask, deadline) - time.monotonic()))
        except Empty:
            continue
        match event:
            case Ending.POWERED_OFF | Ending.REBOOTED:
                return Ending.ON_REQUEST
            case Ending.FILES_LOST:
                pass  # it shuts down already
            case Ending() as ending:
                return ending
            case StopRequested.KILL:
                return Ending.ON_REQUEST
            case Changed():
                ready(_runs(domain))
    if grace:
        _log.warning("the guest is still there after its grace period; ending it")
    return Ending.ON_REQUEST


def _runs(domain: Any) -> bool:
    return _answer(lambda: guest.runs(domain), False)


def _hostdevs(domain: Any, numbers: Mapping[int, int]) -> tuple[Hostdev, ...]:
    try:
        return guest.hostdevs(domain, numbers)
    except ProgramError as error:
        _log.error("%s", error)
        return ()


def _answer(ask: Callable[[], T], otherwise: T) -> T:
    """Return libvirt's answer, or `otherwise` if it takes too long."""
    answers = SimpleQueue[T]()
    _in_a_thread(lambda: answers.put(ask()))
    try:
        return answers.get(timeout=_PATIENCE)
    except Empty:
        _log.warning("libvirt has not answered in %.0f s", _PATIENCE)
        return otherwise


def _in_a_thread(ask: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=ask, name="question", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # the VM's end needs no answer
        _log.error("libvirt cannot be asked: %s", error)
    return thread
