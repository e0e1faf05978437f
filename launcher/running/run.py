"""The life of one VM, from its plan to its end: what `gpu-launcher run` does."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from queue import Empty
from typing import Any

from launcher.errors import LauncherError
from launcher.running import guest
from launcher.running.embedded import has_qemu_here, prepared, root_of
from launcher.running.events import Changed, Ending, NotStarted, Started
from launcher.running.limits import let_lock
from launcher.running.passt import called_for_passt
from launcher.running.plan import Plan
from launcher.running.qemu_log import repeated
from launcher.running.readiness import readiness
from launcher.running.sockets import socket_directory
from launcher.running.vm import VM, Phase, StopRequested
from launcher.storage.made import made

_log = logging.getLogger(__name__)

_ASK_AGAIN = 5.0  # seconds between two ACPI power buttons: a guest that is still booting misses the first
_START_GIVEN_UP = 5.0  # seconds for libvirt to notice that the QEMU is gone which it is starting

#: Say whether the guest runs.
Ready = Callable[[bool], None]


def run(plan: Plan, vm: VM, served: AbstractContextManager[None]) -> Ending:
    """Define and start the domain, and stay until it ends; nothing of it is left afterwards.

    The VM can be asked while it is `served`, which it is until it has ended, and where nobody else's VM is. Refusal for
    what libvirt refuses. A stop that is requested of the VM asks the guest to shut down and ends it after
    its grace period, at once where that is the request, or where the guest has no ACPI to be asked by.
    """
    let_lock(plan.locked)  # as the preflight did, in a process that has ended
    with _root(plan), served:
        try:
            with _place(plan, vm) as (connection, ready), guest.defined(connection, plan.xml, vm) as domain:
                _log.info("%s is defined on %s", plan.domain, plan.uri)
                if not vm.events.empty():
                    return Ending.NOT_STARTED
                with vm.having(domain):
                    try:
                        return _start(domain, plan, vm) or _stay(domain, plan, vm, ready)
                    finally:
                        ready(False)
                        if vm.phase is not Phase.STARTING:  # what has not started is not ours to end
                            guest.end(domain)
        finally:
            vm.becomes(Phase.ENDED)


def look_ahead(uri: str) -> Callable[[], None]:
    """Have libvirt find out what QEMU can do, where its root is there already, as in a pod.

    What is returned waits for it, and comes before run(). Refusal then, where libvirt cannot be had: it says why once.
    """
    refusals: list[LauncherError] = []

    def look() -> None:
        try:
            root = root_of(uri)
            if root is not None and root.is_dir():
                with prepared(root):
                    guest.look_at_qemu(uri)
        except LauncherError as refusal:
            refusals.append(refusal)

    def looked() -> None:
        thread.join()
        for refusal in refusals:
            raise refusal

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    return looked


def tidy(plan: Plan) -> None:
    """What run() would have taken away, had its process not been killed."""
    with _root(plan), _place(plan, VM(plan.identity)) as (connection, _):
        if root_of(plan.uri) is not None:
            guest.forget(connection, plan.domain, plan.xml)


def _root(plan: Plan) -> AbstractContextManager[None]:
    """The root of the embedded driver, where that is it, as this launcher's alone."""
    root = root_of(plan.uri)
    return nullcontext() if root is None else prepared(root)


@contextmanager
def _place(plan: Plan, vm: VM) -> Iterator[tuple[Any, Ready]]:
    """Where the domain can be defined and started: a connection to libvirt, and all that libvirt does not make.

    In the root of the embedded driver a domain of that name is what a launcher that was killed has left, and libvirt
    forgets it.
    """
    root = root_of(plan.uri)
    with (
        made(plan.needs),
        called_for_passt(root, plan.passt) if root is not None and plan.passt is not None else nullcontext(),
        guest.connected(plan.uri, vm) as connection,
        socket_directory(plan.sockets) if has_qemu_here(plan.uri) else nullcontext(),
        repeated(root, plan.domain) if root is not None else nullcontext(),
        readiness(root) if root is not None else nullcontext(_nobody_asks) as ready,
    ):
        if root is not None:
            guest.forget(connection, plan.domain, plan.xml)
        yield connection, ready


def _nobody_asks(runs: bool) -> None:
    """Readiness of a domain in another libvirt."""


def _start(domain: Any, plan: Plan, vm: VM) -> Ending | None:
    """Start the domain; None once it runs, and how it ended where it does not. Refusal where libvirt cannot."""
    vm.becomes(Phase.STARTING)
    guest.start(domain, vm, paused=plan.paused)
    ending = None
    while True:
        match vm.events.get():
            case Started():
                vm.becomes(Phase.RUNNING)
                return ending
            case NotStarted(refusal):
                raise refusal
            case StopRequested():
                return _give_up(domain, vm)
            case Ending() as found:
                ending = found


def _give_up(domain: Any, vm: VM) -> Ending:
    """End a QEMU that is being started. Its guest has written nothing yet, so nobody is asked."""
    vm.becomes(Phase.STOPPING)
    _log.info("ending QEMU, which is being started")
    guest.end(domain)
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


def _stay(domain: Any, plan: Plan, vm: VM, ready: Ready) -> Ending:
    """Wait until the domain ends, by itself or as requested."""
    ready(guest.runs(domain))
    waits = ", paused: gpu-launcher ctl resume" if plan.paused else ""
    _log.info("%s is running%s", plan.domain, waits)
    for line in guest.hostdevs(domain, plan.numbers):
        _log.info("%s", line)
    while True:
        match vm.events.get():
            case Ending() as ending:
                return ending
            case StopRequested() as stop:
                vm.becomes(Phase.STOPPING)
                at_once = stop is StopRequested.KILL or not plan.acpi
                return _stop(domain, vm, 0 if at_once else plan.grace, ready)
            case Changed():
                ready(guest.runs(domain))


def _stop(domain: Any, vm: VM, grace: float, ready: Ready) -> Ending:
    """Ask the guest to shut down, again and again for `grace` seconds; whoever called ends what is there then."""
    deadline = time.monotonic() + grace
    ask = time.monotonic()
    while (left := deadline - time.monotonic()) > 0:
        if time.monotonic() >= ask:
            _log.info("asking the guest to shut down; it has %.0f s left", left)
            guest.ask_to_shut_down(domain)
            ask = time.monotonic() + _ASK_AGAIN
        try:
            event = vm.events.get(timeout=max(0.0, min(ask, deadline) - time.monotonic()))
        except Empty:
            continue
        match event:
            case Ending.POWERED_OFF | Ending.REBOOTED:
                return Ending.ON_REQUEST
            case Ending() as ending:
                return ending
            case StopRequested.KILL:
                return Ending.ON_REQUEST
            case Changed():
                ready(guest.runs(domain))
    if grace:
        _log.warning("the guest is still there after its grace period; ending it")
    return Ending.ON_REQUEST
