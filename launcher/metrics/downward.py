"""Metrics of the host for a guest whose manifest has a volume of kind downwardMetrics: those of KubeVirt's handler
(pkg/downwardmetrics/scraper), whose names SAP's host agent, for example, knows. All host metrics come from what each
container of the node may read in /proc and /sys.
"""

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from launcher.runtime import guest
from launcher.runtime.vm import VM, Phase
from launcher.vm.volumes.vhostmd import Metric, text_of, write_text
from program.errors import Refusal

_EVERY = 5.0  # seconds, KubeVirt's
_NANOSECONDS = 1e9
_KIB = 1024
_PACKAGES = "devices/system/cpu/cpu[0-9]*/topology/physical_package_id"


@contextmanager
def refreshed(disk: Path, node: str, vm: VM, sys: Path, proc: Path = Path("/proc")) -> Iterator[None]:
    """Write the metrics onto the `disk` every few seconds while the VM runs, in a thread that nobody waits for. `node`
    is the host's name; `sys` and `proc` stand for /sys and /proc."""
    ended = threading.Event()

    def refresh() -> None:
        while not ended.wait(_EVERY):
            # What is gone meanwhile has no metrics: the domain, or the disk with it.
            with suppress(Refusal, OSError):
                if vm.phase in (Phase.RUNNING, Phase.STOPPING):
                    domain = vm.domain()
                    qemu = f"qemu-{guest.qemu_of(domain)}"
                    of_guest = guest_metrics(guest.statistics(domain))
                    write_text(disk, text_of((*host_metrics(node, qemu, sys, proc), *of_guest)))

    with suppress(RuntimeError):  # no room for a thread: the guest has no metrics
        threading.Thread(target=refresh, name="downwardMetrics", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def host_metrics(node: str, qemu: str, sys: Path, proc: Path) -> Iterator[Metric]:
    """Yield the host's metrics, without those that cannot be read."""
    yield Metric("host", "HostName", "string", node)
    yield Metric("host", "HostSystemInfo", "string", "linux")
    yield Metric("host", "VirtualizationVendor", "string", "kubevirt.io")  # the only one that agents know here
    yield Metric("host", "VirtProductInfo", "string", qemu)
    packages = set()
    with suppress(OSError):
        packages = {path.read_text().strip() for path in sys.glob(_PACKAGES)}
    if packages:
        yield Metric("host", "NumberOfPhysicalCPUs", "int64", str(len(packages)))
    if times := _numbers(proc / "stat", "cpu"):
        user, nice, system, *_ = times
        yield _seconds("host", (user + nice + system) / os.sysconf("SC_CLK_TCK"))
    memory = {name: numbers[0] for name, numbers in _lines(proc / "meminfo").items() if numbers}
    if {"MemTotal", "MemFree"} <= memory.keys():
        total, free = memory["MemTotal"], memory["MemFree"]
        cached = memory.get("Buffers", 0) + memory.get("Cached", 0)
        swap = {name: memory.get(name, 0) for name in ("SwapTotal", "SwapFree", "SwapCached")}
        yield _kib("host", "FreePhysicalMemory", free)
        yield _kib("host", "FreeVirtualMemory", free + swap["SwapFree"])
        yield _kib("host", "MemoryAllocatedToVirtualServers", total - free - cached)
        yield _kib("host", "UsedVirtualMemory", total + swap["SwapTotal"] - free - cached - swap["SwapCached"])
    for name, counter in (("PagedInMemory", "pswpin"), ("PagedOutMemory", "pswpout")):
        if pages := _numbers(proc / "vmstat", counter):
            yield _kib("host", name, pages[0] * os.sysconf("SC_PAGE_SIZE") // _KIB)
    yield Metric("host", "Time", "int64", str(int(time.time())), "s")


def guest_metrics(statistics: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield the guest's metrics from libvirt's statistics of the domain (guest.statistics)."""
    vcpus = range(statistics.get("vcpu.maximum", 0))
    yield _seconds("vm", sum(statistics.get(f"vcpu.{vcpu}.time", 0) for vcpu in vcpus) / _NANOSECONDS)
    yield Metric("vm", "ResourceProcessorLimit", "int64", str(statistics.get("vcpu.current", 0)))
    # The balloon is not used to take memory from a guest, so both are one.
    for name in ("PhysicalMemoryAllocatedToVirtualSystem", "ResourceMemoryLimit"):
        yield _kib("vm", name, statistics.get("balloon.current", 0))


def _seconds(context: Literal["host", "vm"], seconds: float) -> Metric:
    return Metric(context, "TotalCPUTime", "real64", f"{seconds:.6f}", "s")


def _kib(context: Literal["host", "vm"], name: str, kib: int) -> Metric:
    return Metric(context, name, "uint64", str(max(0, kib)), "KiB")


def _numbers(path: Path, name: str) -> tuple[int, ...]:
    return _lines(path).get(name, ())


def _lines(path: Path) -> Mapping[str, tuple[int, ...]]:
    """Return the numbers of each line of a file of /proc, by the line's first word; {} if it cannot be read."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {
        name.removesuffix(":"): tuple(int(word) for word in words if word.isdecimal())
        for name, *words in (line for line in lines if line)
    }
