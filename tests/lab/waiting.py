"""Waiting for what happens somewhere else, for a time that goes by how slow the machine is."""

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tests.waiting import slowness

T = TypeVar("T")

#: Seconds from power on to a node that is ready, where the limits of waits were written: two cores, nothing beside it.
BOOT = 25.0


class CommandFailed(Exception):
    """Its own words."""


class NotYet(Exception):
    """What there is while something else is waited for."""


@dataclass(frozen=True)
class Patience:
    """How much longer than written a wait may take: as many times as the machine's last boot took longer than BOOT,
    `boot` seconds, or as this host is slower now (tests/waiting.py), whichever is more."""

    boot: float = BOOT

    def slowness(self) -> float:
        return max(self.boot / BOOT, slowness())

    def allowed(self, seconds: float) -> float:
        return seconds * self.slowness()

    def until(self, what: str, look: Callable[[], T | None], seconds: float) -> T:
        """What `look` returns once it is neither None, False nor empty; a look that fails has seen nothing yet.

        Looks take a fifth of the time: most are a kubectl, and the emulated machine needs the processor that it takes.
        """
        began = time.monotonic()
        last: object = "nothing"
        while (looked := time.monotonic()) - began < self.allowed(seconds):
            try:
                found = look()
            except (CommandFailed, NotYet, LookupError, subprocess.TimeoutExpired) as error:
                last = error
            else:
                if found:
                    return found
                last = found
            time.sleep(max(0.2, 4 * (time.monotonic() - looked)))
        raise AssertionError(
            f"not within {self.allowed(seconds):.0f} s: {what}; last seen: {last} "
            f"({seconds:.0f} s are allowed where a boot takes {BOOT:.0f} s and nothing else runs; "
            f"here and now {self.slowness():.1f} times that, and the boot took {self.boot:.0f} s)"
        )
