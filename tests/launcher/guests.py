"""Domains that live in the test's own process, and what is heard of them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from launcher.runtime import guest
from launcher.runtime.events import NotStarted, Started
from launcher.runtime.vm import VM, VMIdentity
from program.ending import Ending
from tests.waiting import allowed


def a_vm() -> VM:
    """One that nobody asks for its name."""
    return VM(VMIdentity("default", "vm", ""))


@contextmanager
def started(domain: Any, vm: VM) -> Iterator[None]:
    """The domain runs, within; Refusal where libvirt does not start it."""
    guest.start(domain, vm, paused=False)
    earlier = []
    while not isinstance(event := vm.events.get(timeout=allowed(60)), Started):
        if isinstance(event, NotStarted):
            raise event.error
        earlier.append(event)
    # A guest may end before libvirt has told whoever started it that it runs.
    for event in earlier:
        vm.events.put(event)
    try:
        yield
    finally:
        guest.end(domain)


def ending(vm: VM, seconds: float = 60) -> Ending:
    """How the domain ends, which it does within so many seconds."""
    deadline = time.monotonic() + allowed(seconds)
    while not isinstance(event := vm.events.get(timeout=max(0.0, deadline - time.monotonic())), Ending):
        pass
    return event
