"""Where gpu-launcher starts."""

import gc

# The imports make a quarter of a million objects and no garbage. Looking for some on the way, and again in all of them
# at the end, takes a third of the time of `render`; program.entry prevents the latter. The part of `run` that stays
# turns collection on again.
gc.disable()

import sys  # noqa: E402

from program.bootstrap import command_named, hold  # noqa: E402

_named = command_named(sys.argv[1:])
# With --explain and --claim the hook prints, and may read standard input for as long as that takes.
_prints = any(word.partition("=")[0] in ("--explain", "--claim") for word in sys.argv)
_stays = _named == "run" or (_named == "hook" and not _prints)
if _stays:
    hold()

import os  # noqa: E402
from contextlib import ExitStack, contextmanager  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

from program.entry import ends_with  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.runtime.plan import RunPlan
    from launcher.runtime.vm import VM
    from program.problem import Severity


def main() -> None:
    ends_with("gpu-launcher", {"run": _run, "hook": _hook}.get(_named, _command), _log if _stays else None)


def _log() -> None:
    from program.log import start_logging

    start_logging(sys.argv[1:])


def _say(line: str, severity: "Severity | None" = None) -> None:
    _log()
    from program.log import log_or_print

    log_or_print("gpu-launcher", line, severity)


def _command() -> Any:
    """Run the command that the command line names, and return its value; None if it has none."""
    from launcher.cli import command_line
    from program.commands import run_command

    return run_command("gpu-launcher", command_line(sys.argv[1:]))


def _hook() -> int:
    """Serve in a process without the modules that read the command line, since `hook` stays in its pod. KubeVirt starts
    no libvirt before it has answered: without arguments, as in the annotation, there is no second process, and what
    only a define needs is imported after that answer."""
    from launcher.hook.flags import ToServe, own_socket

    if _stays:
        _log()
    child = None
    if sys.argv[1:] != ["hook"]:
        from program.child import forked

        child = forked("the process that reads the command line", _command)
    from pathlib import Path

    from launcher.hook import calls
    from launcher.hook.sidecar import serve_until_stopped

    flags = ToServe(own_socket()) if child is None else child.answer()
    if not isinstance(flags, ToServe):
        return flags or 0
    services = calls.services(Path(flags.sysfs), is_plugin=flags.is_plugin)
    gc.freeze()
    gc.enable()
    serve_until_stopped(Path(flags.socket), services)
    return 0


@contextmanager
def _served(plan: "RunPlan", vm: "VM") -> "Iterator[None]":
    """Have the VM's control socket, its port for metrics and its disk with its host's, where the plan has them."""
    from launcher.control import listener as control
    from launcher.metrics import listener as metrics

    with ExitStack() as stack:
        if plan.metrics is not None:
            stack.enter_context(metrics.serving_metrics(plan.metrics, vm, plan.xml, plan.sys))
        if plan.downward_metrics is not None:
            from launcher.metrics.downward import refreshed

            stack.enter_context(refreshed(plan.downward_metrics, plan.node, vm, plan.sys))
        if plan.control is not None:
            stack.enter_context(control.serving_control(plan.control, vm))
        yield


def _run() -> int:
    """Run a VM in three processes, each forked before the imports that only the next one needs: this one supervises,
    its worker stays with libvirt, and the worker's child makes the plan and ends
    (docs/decisions/0009-start-and-end.md)."""
    from launcher.runtime.embedded import asked_for as uri_of
    from launcher.runtime.embedded import forget_ready, is_own_machine
    from launcher.runtime.iommufd import opened
    from launcher.runtime.supervise import grace_in, supervise
    from launcher.runtime.user import asked_for, switch_user

    is_root, uri = os.geteuid() == 0, uri_of(sys.argv[2:])
    if is_own_machine(sys.argv[2:]) and is_root:
        from launcher.runtime.own_user import start_over

        start_over(sys.argv[2:], _say)
    iommufd = opened()  # as root, if it is: later, with the VM known, this process is its user
    if (handover := asked_for(sys.argv[2:])) is not None:
        switch_user(handover)
    forget_ready(sys.argv[2:])
    place = os.memfd_create("plan")
    supervisor = os.getpid()

    def work() -> int:
        from launcher.runtime.worker import TO_ITS_END, work

        _log()
        to_its_end = TO_ITS_END in sys.argv[2:]
        return work(lambda: _command() or 0, place, uri, _served, iommufd, supervisor=supervisor, to_its_end=to_its_end)

    def tidy() -> None:
        from launcher.control.listener import forget
        from launcher.runtime.worker import tidy

        _log()
        tidy(place, forget)

    return supervise(work, tidy, lambda: grace_in(place), _say)


if __name__ == "__main__":
    main()
