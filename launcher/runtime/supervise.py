"""The first process: it starts the worker, passes signals on, reaps, and leaves no process of the VM behind.

libvirt daemonizes QEMU, passt and swtpm, which so become children of the next subreaper above, or of process 1. If that
is this process, they are reaped at once (libvirt takes a zombie for a QEMU that won't go, and waits 44 s for each) and
end with the worker, however it ends. If this process is killed, the worker gets a signal, and ends the VM as on
SIGTERM. Only if both are killed at once do processes stay, unless this is process 1 of its pod: with it, the kernel
ends all.
"""

import os
import signal
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from program.bootstrap import STOPS, hold
from program.prctl import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, prctl

#: The guest's grace period, in front of the plan: this process reads no plans.
GRACE = struct.Struct("<d")

_AWAITED = {*STOPS, signal.SIGCHLD}
# Seconds for what the worker leaves to end by itself, and then for the kernel to end it.
_LEFT = ((signal.SIGTERM, 3.0), (signal.SIGKILL, 5.0))
_TIDYING = 20.0  # seconds
#: Seconds after the grace period for the worker to end the guest, which the worker does in 35; the kubelet has 45.
_LAST = 40.0
_KILLED = 5.0  # seconds for the kernel to end it


def supervise(
    work: Callable[[], object],
    tidy: Callable[[], object],
    grace: Callable[[], float],
    say: Callable[[str], object],
) -> int:
    """Run `work` in a worker, with SIGTERM and SIGINT blocked; return its exit code once no process of it is left.

    If a signal ended the worker, the code is 128 plus the signal's number, and `tidy` runs in another process, for what
    only the worker knew of. After a signal to end, the worker has the guest's `grace` period, in seconds, and 40 s
    more; then it is killed. Call this before there are threads.
    """
    hold(signal.SIGCHLD)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    worker = _fork(work)
    code = _wait(worker, then=lambda: grace() + _LAST)
    in_time = code is not None
    if not in_time:
        os.kill(worker, signal.SIGKILL)
        code = _wait(worker, _KILLED)
    _end_children(_LEFT if in_time else _LEFT[1:], say)
    if code is not None and code >= 0:
        return code
    _wait(_fork(tidy), _TIDYING)
    _end_children(_LEFT, say)
    signum = signal.Signals(-code if code is not None else signal.SIGKILL)
    words = f"{signum.name} has ended the worker" if in_time else "the worker has not ended in time and is killed"
    say(f"{words}, and so the guest")
    return 128 + signum


def grace_in(place: int) -> float:
    """Return the grace period in a plan's file, in seconds; 0 before there is a plan."""
    header = os.pread(place, GRACE.size, 0)
    return float(GRACE.unpack(header)[0]) if len(header) == GRACE.size else 0.0


def _fork(work: Callable[[], object]) -> int:
    """Return the process ID of a child, which raises SystemExit with the value that `work` returns."""
    parent = os.getpid()
    child = os.fork()  # not program.child's: it gives no answer, and lives as long as the VM
    if child:
        return child
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    # Out of the terminal's foreground: ^C comes from the parent, and once.
    os.setpgid(0, 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        raise SystemExit(128 + signal.SIGTERM)
    raise SystemExit(work())


def _wait(child: int, seconds: float | None = None, then: Callable[[], float] | None = None) -> int | None:
    """Reap children and pass signals on until that child ends; return its exit code, negative for a signal. Return None
    after so many `seconds`, or, counted from the first signal passed on, after as many as `then` returns.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        ended = _reap_all()
        if child in ended:
            return os.waitstatus_to_exitcode(ended[child])
        if deadline is None:
            signum = signal.sigwait(_AWAITED)
        else:
            received = signal.sigtimedwait(_AWAITED, max(0.0, deadline - time.monotonic()))
            if received is None:
                return None
            signum = signal.Signals(received.si_signo)
        if signum != signal.SIGCHLD:
            os.kill(child, signum)
            if deadline is None and then is not None:
                deadline = time.monotonic() + then()


def _end_children(steps: Sequence[tuple[signal.Signals, float]], say: Callable[[str], object]) -> None:
    """End the processes that the worker has left, in bounded time."""
    for signum, seconds in steps:
        deadline, signalled = time.monotonic() + seconds, set[int]()
        while (children := _children()) and (left := deadline - time.monotonic()) > 0:
            for child in children - signalled:
                os.kill(child, signum)
            signalled |= children
            signal.sigtimedwait({signal.SIGCHLD}, left)
        if not children:
            return
    say(f"still there after SIGKILL: processes {sorted(children)}")


def _children() -> set[int]:
    """Return this process's living children, adopted ones too (proc_pid_stat(5): the parent is the fourth field)."""
    _reap_all()
    children = set()
    # Not Path.glob: it fails with ESRCH if a process ends while it looks for its `stat`.
    for process in [each for each in Path("/proc").iterdir() if each.name.isdigit()]:
        try:
            fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        if int(fields[1]) == os.getpid():
            children.add(int(process.name))
    return children


def _reap_all() -> dict[int, int]:
    """Reap every child that has ended, and return their statuses: one SIGCHLD may stand for several."""
    ended: dict[int, int] = {}
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if child == 0:
            return ended
        ended[child] = status
