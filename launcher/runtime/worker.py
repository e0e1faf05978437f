"""The process that stays beside QEMU. Its only large library is libvirt."""

import gc
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.runtime import libvirt_log
from launcher.runtime.iommufd import IOMMUFD
from launcher.runtime.vm import VM, StopRequested, having_threads
from program.bootstrap import STOPS
from program.child import Child, forked, readable
from program.ending import Ending
from program.errors import ProgramError, Refusal
from program.problem import one_line

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from launcher.runtime.plan import RunPlan

_log = logging.getLogger(__name__)

#: The flag of `run` that is for this process, which has no parser of flags.
TO_ITS_END = "--to-its-end"


def work(
    make: "Callable[[], RunPlan | int]",
    place: int,
    uri: str,
    served: "Callable[[RunPlan, VM], AbstractContextManager[None]]",
    iommufd: IOMMUFD | None,
    *,
    supervisor: int,
    to_its_end: bool,
) -> int:
    """Have a child make the plan, keep the plan in `place`, and run it. Return the exit code, which the child may have
    returned instead of a plan. SIGTERM and SIGINT end the VM, a second SIGINT at once; call this with both blocked.

    The plan says where the VM is `served`, and whether it gets `iommufd`. `uri` is the libvirt that the plan will name,
    unless something is wrong with it. `supervisor` is the process ID of the parent. If the VM is to run `to_its_end`,
    an earlier request to end it is a failure. Raise Refusal if something cannot be started.
    """
    planner = forked("the process that reads the manifest", make)
    stopped = os.eventfd(0, os.EFD_CLOEXEC)
    stops: list[Callable[[StopRequested], object]] = [lambda stop: os.eventfd_write(stopped, 1)]
    _on_stop(stops)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    # Only errors: libvirt warns of what is so on purpose, maybe after our last line. It reads this variable once.
    os.environ.setdefault("LIBVIRT_DEBUG", "4")
    with libvirt_log.repeated(), ExitStack() as at_end:
        ended = _ended(planner, stopped, stops, place, uri, served, iommufd, at_end, supervisor)
    if isinstance(ended, int):
        return ended
    name, ending = ended
    if to_its_end and ending in (Ending.ON_REQUEST, Ending.NOT_STARTED):
        ending = Ending.INTERRUPTED
    level = logging.ERROR if ending.code else logging.INFO
    _log.log(level, "%s has ended: %s", name, ending.words, extra={"domain": name})
    return ending.code


def _ended(
    planner: "Child[RunPlan | int]",
    stopped: int,
    stops: list[Callable[[StopRequested], object]],
    place: int,
    uri: str,
    served: "Callable[[RunPlan, VM], AbstractContextManager[None]]",
    iommufd: IOMMUFD | None,
    at_end: ExitStack,
    supervisor: int,
) -> tuple[str, Ending] | int:
    """Return the VM's name and how it ended, or the planner's exit code; the parameters are work()'s."""
    missing = None
    try:
        from launcher.runtime.preparation import prepare_start

        preparation = prepare_start(uri, iommufd)
        at_end.callback(lambda: os.getppid() == supervisor or preparation.leave())
        from launcher.runtime.run import run
    except ModuleNotFoundError as error:
        missing = error.name
    from launcher.runtime.plan import keep

    gc.freeze()  # what was imported stays
    gc.enable()
    plan = planner.answer_until(stopped)
    if isinstance(plan, int):
        return plan
    if missing is not None:
        fix = "pip install 'gpu-launcher[libvirt]'"
        raise Refusal(missing, "this Python package is not there, and run needs it", fix)
    if plan is None:
        return "the VM", Ending.NOT_STARTED
    keep(plan, place)
    vm = VM(plan.identity, plan.numbers, asks_nvidia_smi=plan.asks_nvidia_smi, fabric_manager=plan.fabric_manager)
    stops.append(vm.request)
    if readable([stopped], 0):  # before the line above
        vm.request(StopRequested.SIGNAL)
    return plan.domain, run(plan, vm, served(plan, vm), preparation)


def tidy(place: int, forget: Callable[[Path], None]) -> None:
    """Remove what the plan's VM has left after work() was killed; `forget` removes its control socket."""
    from launcher.runtime.plan import plan_in

    plan = plan_in(place)
    if plan is None:
        return
    try:
        with libvirt_log.repeated():
            from launcher.runtime import run

            if plan.control is not None:
                forget(plan.control)
            run.tidy(plan)
    except ProgramError as error:
        _log.warning("cannot tidy up after the worker: %s", one_line(error))


def _on_stop(requests: Iterable[Callable[[StopRequested], object]]) -> None:
    """Call all `requests`, also those that are added later, in a thread of its own on SIGTERM and SIGINT.

    Python's handlers run in the main thread, and nothing wakes it if the kernel gives the signal to another thread, or
    if the signal comes just before the main thread waits: 16 of 60,000 signals were lost. The byte for set_wakeup_fd()
    is written in the thread that the signal interrupts.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def listen() -> None:
        interrupt = StopRequested.INTERRUPT
        while signum := os.read(reader, 1):
            stop = StopRequested.SIGNAL
            if signum[0] == signal.SIGINT:
                stop, interrupt = interrupt, StopRequested.KILL
            for request in requests:
                request(stop)

    with having_threads("signals"):
        threading.Thread(target=listen, name="signals", daemon=True).start()
    for signum in STOPS:
        signal.signal(signum, lambda signum, frame: None)  # without a handler of Python's, no byte
