"""Waiting for what happens in another process or thread, for a time that follows the speed of the machine."""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache

#: Seconds of processor time that a start of Python takes where the limits of waits were written.
_START = 0.01


@cache
def _slower() -> float:
    """How many times as much processor time as there a start of Python takes here: the least of five."""
    starts = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-S", "-c", ""], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        starts.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return min(starts) / _START


def slowness() -> float:
    """How many times longer than written a wait may take: the processors' slowness, measured once, times how many
    processes there are for each of them now. Never less than 1."""
    return max(1.0, _slower()) * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def allowed(seconds: float) -> float:
    """The limit of a wait for which `seconds` are written."""
    return seconds * slowness()


def until(true: Callable[[], object], seconds: float = 30, seen: Callable[[], object] = lambda: "nothing") -> None:
    """Wait until it is `true`. AssertionError, with what is `seen` then, if that takes longer than the `allowed`
    seconds, which grow while the machine gets busier."""
    began = time.monotonic()
    while not true():
        waited = time.monotonic() - began
        assert waited < allowed(seconds), (
            f"not within {allowed(seconds):.0f} s, or {seconds:g} s if nothing else runs; last seen: {seen()}"
        )
        time.sleep(min(max(0.01, waited / 20), 0.1))  # to look may cost more than what it waits for
