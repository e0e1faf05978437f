"""How long a guest's memory takes before VFIO has it: seconds per GiB, by the size of its pages, by threads, private
and shared, touched first and again; its page tables; and QEMU, from exec to a guest that runs, with all of it pinned.

What QEMU does for <allocation mode='immediate' threads='N'/> is done here: parts of a mapping, each populated for
writing by a thread (MADV_POPULATE_WRITE). `-overcommit mem-lock=on` stands for VFIO: both have the kernel fault, clear
and pin all pages in one thread. Shared memory is a file of a tmpfs with huge pages, in a mount namespace of the bench's
own, which takes root: a memfd has them only where shmem_enabled is `advise` or `always`.

    unshare -m .venv/bin/python -m tests.bench.memory [GIB [GIB ...]]

The first size is for all, the others are for QEMU besides.
"""

import ctypes
import json
import mmap
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

_GIB = 1 << 30
_HUGE = 2 << 20
_ROUNDS = 3
_THREADS = (1, 2)
_MADV_HUGEPAGE, _MADV_NOHUGEPAGE, _MADV_POPULATE_WRITE = 14, 15, 23  # include/uapi/asm-generic/mman-common.h
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.mlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def _advise(at: int, size: int, advice: int) -> None:
    if _libc.madvise(at, size, advice) != 0:
        raise OSError(ctypes.get_errno(), "madvise")


@contextmanager
def _mapped(size: int, directory: Path | None, *, huge: bool) -> Iterator[int]:
    """The address of so much memory, which begins at a huge page: private, or shared by a file in that directory."""
    if directory is None:
        memory = mmap.mmap(-1, size + _HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    else:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.truncate(size + _HUGE)
            memory = mmap.mmap(file.fileno(), size + _HUGE, mmap.MAP_SHARED)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    at = -(-start // _HUGE) * _HUGE
    _advise(at, size, _MADV_HUGEPAGE if huge else _MADV_NOHUGEPAGE)
    try:
        yield at
    finally:
        _libc.munmap(ctypes.c_void_p(start), ctypes.c_size_t(size + _HUGE))  # Python's own waits for garbage collection


def _populated(at: int, size: int, threads: int) -> None:
    part = size // threads
    each = [Thread(target=_advise, args=(at + part * n, part, _MADV_POPULATE_WRITE)) for n in range(threads)]
    for thread in each:
        thread.start()
    for thread in each:
        thread.join()


def _seconds(act: Callable[[], object]) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began


def _tables() -> int:
    """Bytes of this process's page tables."""
    found = re.search(r"VmPTE:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def _of_pages(gib: int, tmpfs: Path) -> None:
    print(f"{gib} GiB, seconds per GiB, medians of {_ROUNDS}; pinned again: mlock(2) of what is populated already")
    print("| memory | pages | threads | first touch | pinned again | page tables, MiB per GiB |")
    print("|---|---|---|---|---|---|")
    size = gib * _GIB
    for name, directory in (("private", None), ("shared", tmpfs)):
        for huge in (False, True):
            for threads in _THREADS:
                first, again, tables = [], [], []
                for _ in range(_ROUNDS):
                    with _mapped(size, directory, huge=huge) as at:
                        before = _tables()
                        first.append(_seconds(lambda at=at, threads=threads: _populated(at, size, threads)) / gib)  # type: ignore[misc]
                        tables.append((_tables() - before) / gib / (1 << 20))
                        again.append(_seconds(lambda at=at: _libc.mlock(at, size)) / gib)  # type: ignore[misc]
                row = (f"{statistics.median(values):.3f}" for values in (first, again, tables))
                print(f"| {name} | {'2 MiB' if huge else '4 KiB'} | {threads} | {' | '.join(row)} |", flush=True)


def _exec_to_running(gib: int, threads: int | None, *, huge: bool) -> float:
    """Seconds until QEMU says on its monitor that its guest runs."""
    prealloc = "" if threads is None else f",prealloc=on,prealloc-threads={threads}"
    with tempfile.TemporaryDirectory() as place, socket.socket(socket.AF_UNIX) as monitor:
        monitor.bind(f"{place}/qmp")
        monitor.listen()
        command = [
            *("qemu-system-x86_64", "-machine", "q35,memory-backend=m", "-m", f"{gib}G", "-accel", "tcg"),
            *("-object", f"memory-backend-ram,id=m,size={gib}G{prealloc}", "-overcommit", "mem-lock=on"),
            *("-nodefaults", "-display", "none", "-qmp", f"unix:{place}/qmp"),
        ]
        began = time.monotonic()
        # Without THP for QEMU and all that it calls: prctl(PR_SET_THP_DISABLE).
        qemu = subprocess.Popen(command, preexec_fn=None if huge else lambda: _libc.prctl(41, 1, 0, 0, 0))
        try:
            talk = monitor.accept()[0].makefile("rw")
            talk.readline()
            for ask in ("qmp_capabilities", "query-status"):
                print(json.dumps({"execute": ask}), file=talk, flush=True)
                while "return" not in (answer := json.loads(talk.readline())):
                    pass
            assert answer["return"]["running"], answer
            return time.monotonic() - began
        finally:
            qemu.kill()
            qemu.wait()


def _of_qemu(sizes: Sequence[int]) -> None:
    print(f"\nQEMU, exec to a running guest, all of its memory pinned; seconds, medians of {_ROUNDS}, least and most")
    print("| memory | pages | as before | threads='2' |")
    print("|---|---|---|---|")
    for gib in sizes:
        for huge in (False, True):
            # In turn, so that other work on the machine slows both.
            runs = [[_exec_to_running(gib, threads, huge=huge) for threads in (None, 2)] for _ in range(_ROUNDS)]
            row = (
                f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
                for values in zip(*runs, strict=True)
            )
            print(f"| {gib} GiB | {'2 MiB' if huge else '4 KiB'} | {' | '.join(row)} |", flush=True)


def main() -> None:
    sizes = [int(size) for size in sys.argv[1:]] or [4]
    with tempfile.TemporaryDirectory() as place:
        if os.geteuid() == 0:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "huge=advise,size=100%", "none", place], check=True)
        try:
            _of_pages(sizes[0], Path(place))
        finally:
            if os.geteuid() == 0:
                subprocess.run(["umount", place], check=True)
    _of_qemu(sizes)


if __name__ == "__main__":
    main()
