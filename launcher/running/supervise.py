"""The first process of a container: it reaps, passes signals on, and ends with its worker's exit code.

libvirt daemonizes QEMU, which so becomes a child of the container's first process. If that one doesn't reap, libvirt
takes the zombie for a QEMU that won't go, and waits 44 s for each.
"""

import os
import signal

_PASSED_ON = (signal.SIGTERM, signal.SIGINT)
_AWAITED = {*_PASSED_ON, signal.SIGCHLD}


def hold_signals() -> None:
    """As process 1: signals wait from now on until supervise() asks for them; the sooner the better.

    The kernel drops what process 1 of a namespace has no handler for (signal(7)); a SIGTERM that came while modules
    are still being imported would be lost, and the pod would start what it was told to end.
    """
    if os.getpid() == 1:
        signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)


def supervise() -> None:
    """As process 1: fork, and return in the worker alone. In any other process somebody else reaps: return at once.

    Called before there are threads. SystemExit, in the first process, with the code of the worker: 128 and the signal's
    number where a signal ended it.
    """
    if os.getpid() != 1:
        return
    hold_signals()
    worker = os.fork()
    if worker == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
        return
    while True:
        signum = signal.sigwait(_AWAITED)
        if signum != signal.SIGCHLD:
            os.kill(worker, signum)
            continue
        status = _reap_all().get(worker)
        if status is not None:
            code = os.waitstatus_to_exitcode(status)
            raise SystemExit(code if code >= 0 else 128 - code)


def _reap_all() -> dict[int, int]:
    """Every child that has ended, with its status: one SIGCHLD may stand for several."""
    ended: dict[int, int] = {}
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if child == 0:
            return ended
        ended[child] = status
