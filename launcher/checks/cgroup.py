"""What the container may use of the node's memory and CPUs, by its cgroup, against what the guest is to have.

Files of version 2 and of version 1 (kernel Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst;
Documentation/scheduler/sched-bwc.rst), as a container sees its own; and of each cgroup above that it can see.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.checks.finding import error, warning
from launcher.guest import Guest
from pci.sysfs.attribute import Unreadable, text
from program.finding import Finding

_ROOT = "fs/cgroup"
_MIB = 1 << 20
#: Version 1 writes a number for "no limit": the largest that is a multiple of the page size (PAGE_COUNTER_MAX).
_NO_LIMIT = 1 << 62
_MEMORY_LIMIT = "the container's memory limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bytes of memory, CPUs by quota, and bytes of hugepages by their size; None and absent where there is no limit."""

    memory: int | None = None
    cpus: float | None = None
    hugepages: Mapping[int, int]


def read_limits(sys: Path, membership: str) -> Limits:
    """The least of the limits of this process's cgroups. `membership` is /proc/self/cgroup, where it is known.

    A controller is of version 1, mounted by its name, or of version 2, whose tree is all that there is.
    """
    paths = dict(re.findall(r"^\d+:([^:\n]*):(/[^\n]*)$", membership, re.MULTILINE))
    of_controller = {name: path for names, path in paths.items() for name in names.split(",")}

    def values(controller: str, file: str) -> Iterator[str]:
        for mount, path in ((controller, of_controller.get(controller, "/")), ("", of_controller.get("", "/"))):
            for place in _places(f"{_ROOT}/{mount}".rstrip("/"), path):
                try:
                    value = text(sys, f"{place}/{file}")
                except Unreadable:
                    continue  # what is no text is no limit
                if value:
                    yield value

    memory = [*_numbers(values("memory", "memory.max")), *_numbers(values("memory", "memory.limit_in_bytes"))]
    cpus = [*_quotas(values("cpu", "cpu.max"))]
    for quota, period in zip(values("cpu", "cpu.cfs_quota_us"), values("cpu", "cpu.cfs_period_us"), strict=False):
        cpus += _quotas([f"{quota} {period}"])
    return Limits(
        memory=min(memory, default=None),
        cpus=min(cpus, default=None),
        hugepages={
            size: min(limits)
            for size, name in _PAGES.items()
            if (
                limits := [
                    *_numbers(values("hugetlb", f"hugetlb.{name}.max")),
                    *_numbers(values("hugetlb", f"hugetlb.{name}.limit_in_bytes")),
                ]
            )
        },
    )


#: As the kernel names them (hugetlb_cgroup_file_init, mem_fmt in mm/hugetlb_cgroup.c).
_PAGES = {
    size: f"{size >> 30}GB" if size >= 1 << 30 else f"{size >> 20}MB" if size >= 1 << 20 else f"{size >> 10}KB"
    for size in (1 << bits for bits in range(16, 36))
}


def memory(guest: Guest, limit: int | None, beside: int, *, is_pinned: bool) -> Finding | None:
    """Whether the guest's memory fits below the limit, with the bytes that there are `beside` it; with `is_pinned` the
    guest has all of it from its start. Hugepages are accounted by themselves."""
    own = guest.memory if guest.page is None else 0
    if limit is None or limit >= own + beside:
        return None
    says = f"is {limit // _MIB} MiB, and the guest takes {own // _MIB} MiB, with {beside // _MIB} MiB beside it"
    fix = "raise resources.limits.memory of the container to that of the Pod that gpu-launcher pod prints"
    if is_pinned and own and limit <= own:
        return error(_MEMORY_LIMIT, f"{says}: VFIO and SEV pin the guest's, and the kernel would kill QEMU", fix)
    return warning(_MEMORY_LIMIT, f"{says}: the kernel kills QEMU if it is all used", fix)


def cpus(guest: Guest, quota: float | None) -> Finding | None:
    if quota is None or quota >= guest.vcpus:
        return None
    return warning(
        "the container's CPU limit",
        f"is {quota:g} CPUs, and the guest has {guest.vcpus} vCPUs: they stand still for a part of each tenth of a "
        "second",
        "raise resources.limits.cpu of the container, or leave it out",
    )


def _places(mount: str, path: str) -> list[str]:
    """The cgroup and those above it; without a namespace of its own, a container has its cgroup at the mount itself."""
    parts = [part for part in path.split("/") if part and part != ".."]
    return ["/".join([mount, *parts[:depth]]) for depth in range(len(parts) + 1)]


def _numbers(values: Iterable[str]) -> Iterator[int]:
    for each in values:
        if re.fullmatch("[0-9]{1,20}", each, re.ASCII) and int(each) < _NO_LIMIT:
            yield int(each)


def _quotas(values: Iterable[str]) -> Iterator[float]:
    """`QUOTA PERIOD` in microseconds; max and -1 are none."""
    for each in values:
        if match := re.fullmatch("([0-9]{1,15}) ([1-9][0-9]{0,15})", each, re.ASCII):
            yield int(match[1]) / int(match[2])
