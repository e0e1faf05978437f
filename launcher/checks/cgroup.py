"""What the container may use of the node's memory and CPUs, against what the guest is to have: limits of its cgroup,
and RLIMIT_MEMLOCK.

A cgroup has the files of version 2 or of version 1 (kernel Documentation/admin-guide/cgroup-v2.rst,
cgroup-v1/memory.rst; Documentation/scheduler/sched-bwc.rst). A container sees its own, and maybe some above it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.checks.finding import error, warning
from launcher.checks.wording import POD, Wording
from launcher.guest import Guest
from launcher.hostdevs import GuestCard
from launcher.quantity import written
from pci.resource import USBAddress
from pci.sysfs.attribute import Unreadable, text
from program.finding import Finding

_ROOT = "fs/cgroup"
_MIB = 1 << 20
#: Version 1 writes a number for "no limit": the largest that is a multiple of the page size (PAGE_COUNTER_MAX).
_NO_LIMIT = 1 << 62
_MEMORY_LIMIT = "the container's memory limit"
#: Sizes of hugepages, as the kernel names them (hugetlb_cgroup_file_init, mem_fmt in mm/hugetlb_cgroup.c): 2MB.
_PAGES = {1 << bits: written(1 << bits).replace("i", "B") for bits in range(16, 36)}
#: Beside the guest's memory, for what else of its process VFIO may map (libvirt, qemuDomainGetMemLockLimitBytes).
_RESERVE = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bytes of memory, CPUs by quota, and bytes of hugepages by page size. None, or no entry, means no limit."""

    memory: int | None = None
    cpus: float | None = None
    hugepages: Mapping[int, int]


def read_limits(sys: Path, membership: str) -> Limits:
    """Read the lowest limits of this process's cgroups. `membership` is /proc/self/cgroup, "" if unknown.

    A controller is of version 1, mounted by its name, or of version 2, which has one tree for all controllers.
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

    def lowest(controller: str, *files: str) -> int | None:
        return min((number for file in files for number in _numbers(values(controller, file))), default=None)

    cpus = [*_quotas(values("cpu", "cpu.max"))]
    for quota, period in zip(values("cpu", "cpu.cfs_quota_us"), values("cpu", "cpu.cfs_period_us"), strict=False):
        cpus += _quotas([f"{quota} {period}"])
    return Limits(
        memory=lowest("memory", "memory.max", "memory.limit_in_bytes"),
        cpus=min(cpus, default=None),
        hugepages={
            size: limit
            for size, name in _PAGES.items()
            if (limit := lowest("hugetlb", f"hugetlb.{name}.max", f"hugetlb.{name}.limit_in_bytes")) is not None
        },
    )


def memory(guest: Guest, limit: int | None, beside: int, *, is_pinned: bool) -> Finding | None:
    """Return what is wrong if the guest's memory and `beside`, the bytes that its processes need besides, exceed the
    limit. If it `is_pinned`, the guest has all of it from its start. Hugepages have limits of their own."""
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


def to_be_locked(guest: Guest, cards: Iterable[GuestCard]) -> int:
    """Return how many bytes QEMU has to be able to lock; 0 if no device reaches the guest's memory by DMA.

    That is what libvirt gives a QEMU with VFIO: the guest's memory, in whole MiB, and 1 GiB. It counts once for all
    devices; only with an IOMMU in the guest, or with vDPA, does each count, and our domains have neither. SEV pins the
    guest too, and libvirt gives it nothing for that (docs/kbase/launch_security_sev.rst, "Memory").
    """
    is_pinned = guest.confidentiality is not None and guest.confidentiality.pins_memory
    if not is_pinned and all(isinstance(card.device, USBAddress) for card in cards):
        return 0
    return -(-guest.memory // _MIB) * _MIB + _RESERVE


def memlock(needed: int, limit: int | None, wording: Wording = POD) -> Finding | None:
    """Return an error if `limit` is too low: what a QEMU of this process may lock, in bytes, when it has been raised as
    far as possible. None means no limit."""
    if limit is None or limit >= needed:
        return None
    return error(
        "RLIMIT_MEMLOCK",
        f"VFIO and SEV lock the guest's memory: {needed // _MIB} MiB with libvirt's reserve, and {wording.user} may "
        f"lock {limit // _MIB} MiB",
        wording.memlock,
    )


def _places(mount: str, path: str) -> list[str]:
    """The cgroup and those above it. A container without a cgroup namespace has its own at the mount itself."""
    parts = [part for part in path.split("/") if part and part != ".."]
    return ["/".join([mount, *parts[:depth]]) for depth in range(len(parts) + 1)]


def _numbers(values: Iterable[str]) -> Iterator[int]:
    for each in values:
        if re.fullmatch("[0-9]{1,20}", each, re.ASCII) and int(each) < _NO_LIMIT:
            yield int(each)


def _quotas(values: Iterable[str]) -> Iterator[float]:
    """Read `QUOTA PERIOD`, in microseconds. The quotas max and -1 mean no limit."""
    for each in values:
        if match := re.fullmatch("([0-9]{1,15}) ([1-9][0-9]{0,15})", each, re.ASCII):
            yield int(match[1]) / int(match[2])
