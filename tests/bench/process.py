"""What a process costs, as Linux counts it; and several processes on one core."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def proportional_set_size(pid: int) -> int:
    """Bytes: what is its own, and its share of what it shares (kernel Documentation/filesystems/proc.rst)."""
    match = re.search(r"^Pss: +([0-9]+) kB$", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024


def cpu_seconds(pid: int) -> float:
    """User and system time of all its threads, also of those that ended, to the nanosecond."""
    # What clock_getcpuclockid(3) gives for a process: CPUCLOCK_SCHED is 2. /proc/PID/stat counts in hundredths.
    return time.clock_gettime((~pid << 3) | 2)


@contextmanager
def on_one_core(*pids: int) -> Iterator[None]:
    """This process and those, with all their threads and those they start, on one core; afterwards as before."""
    before = os.sched_getaffinity(0)
    pids = (os.getpid(), *pids)
    _pin(pids, {max(before)})
    try:
        yield
    finally:
        _pin(pids, before)


def _pin(pids: tuple[int, ...], cores: set[int]) -> None:
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            try:
                os.sched_setaffinity(int(thread.name), cores)
            except ProcessLookupError:
                continue  # it ended meanwhile
