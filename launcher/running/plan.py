"""All that it takes to run a VM once its manifest is understood; made in a process of its own, which then ends.

What reads, checks and renders manifests takes 20 MB that are of no use beside a running guest.
"""

import os
import pickle
import select
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.running.grace import HEADER
from launcher.running.vm import Identity
from launcher.storage.credentials import ByAgent
from launcher.storage.made import Need
from launcher.storage.shares import Share
from program.errors import Refusal


@dataclass(frozen=True)
class Plan:
    """A domain, where it runs, and how it ends.

    `domain` is the domain's name in `xml`; `numbers` are the bus numbers that the guest will have, by index of the
    controller. `sockets` is the directory of the domain's sockets, and `needs` what else of it has to be on disk.
    `locked` are the bytes that QEMU has to be able to lock, 0 where it is not this pod's or has no card. `grace` are
    the seconds that the guest has to shut down, which a guest without `acpi` is not asked to. One that is to start
    `paused` waits for somebody to resume it. `control` is the socket on which the VM can be asked, None for nowhere.
    `credentials` are for the guest's agent, and `shares` for virtiofsd to serve.
    `passt` is the program that libvirt is to call for passt, as text; None where the guest has no network.
    """

    identity: Identity
    domain: str
    xml: str
    numbers: Mapping[int, int]
    sockets: Path
    needs: tuple[Need, ...]
    uri: str
    locked: int
    acpi: bool
    grace: float
    paused: bool = False
    control: Path | None = None
    credentials: tuple[ByAgent, ...] = ()
    shares: tuple[Share, ...] = ()
    passt: str | None = None


class Planner:
    """A child that makes the plan and leaves it in `place`, a file descriptor that outlives both.

    What is done until plan() is called happens at the same time.
    """

    def __init__(self, make: Callable[[], object], place: int) -> None:
        self._place = place
        self._stopped = os.eventfd(0, os.EFD_CLOEXEC)
        self._pid = os.fork()
        if self._pid == 0:
            raise SystemExit(_left_in(place, make))
        self._fd = os.pidfd_open(self._pid)
        self._events = select.poll()
        self._events.register(self._fd, select.POLLIN)
        self._events.register(self._stopped, select.POLLIN)

    def stop(self) -> None:
        """Have it end without a plan; for a signal's handler too. It has nothing to clean up."""
        os.eventfd_write(self._stopped, 1)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    @property
    def is_stopped(self) -> bool:
        return self._stopped in dict(self._events.poll(0))

    def plan(self) -> Plan | int | None:
        """Wait for it: the plan, or the exit code where it made none, as for --help, and has said why.

        None once it is stopped, whether it has ended or hangs in the kernel.
        """
        self._events.poll()
        if self.is_stopped:
            return None
        _, status = os.waitpid(self._pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            name = signal.Signals(-code).name
            raise Refusal(name, "has ended the process that reads the manifest", "if nobody sent it, memory was short")
        return code if code > 0 else plan_in(self._place) or 0


def plan_in(place: int) -> Plan | None:
    """The plan that was left there; None where none was."""
    size = os.fstat(place).st_size - HEADER.size
    return pickle.loads(os.pread(place, size, HEADER.size)) if size > 0 else None  # noqa: S301 our own process wrote it


def _left_in(place: int, make: Callable[[], object]) -> Any:
    """In the child: make the plan; the exit code."""
    # The kernel's: an exception could be raised anywhere, and Python prints one that is raised where it imports.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    made = make()
    if not isinstance(made, Plan):
        return made
    os.write(place, HEADER.pack(made.grace) + pickle.dumps(made))
    # Taking apart what was imported would take 20 ms, for which the worker would wait.
    sys.stderr.flush()
    os._exit(0)
