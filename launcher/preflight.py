"""What a start would fail for, said before it: in numbers, and with what mends it."""

import resource
from dataclasses import dataclass
from pathlib import Path

#: Beside the guest's memory, for what else of its process VFIO may map (libvirt, qemuDomainGetMemLockLimitBytes).
_VFIO_OVERHEAD = 1 << 30
_CAP_SYS_RESOURCE = 24  # linux/capability.h
_MIB = 1 << 20


@dataclass(frozen=True)
class LockedMemory:
    """How much memory this process may lock, in bytes (None: any), and whether it may raise that."""

    limit: int | None
    can_raise: bool


def locked_memory(proc: Path = Path("/proc")) -> LockedMemory:
    """This process's, as the kernel has it (proc(5), `CapEff`)."""
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    status = (proc / "self" / "status").read_text()
    effective = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:"))
    return LockedMemory(
        limit=None if hard == resource.RLIM_INFINITY else hard, can_raise=bool(effective >> _CAP_SYS_RESOURCE & 1)
    )


def locked_memory_shortfall(guest_memory: int, allowed: LockedMemory) -> str | None:
    """Why libvirt could not start a guest of that many bytes with a host device; None if it can.

    VFIO pins the whole guest, so libvirt gives QEMU a limit of the guest's memory and 1 GiB.
    """
    needed = guest_memory + _VFIO_OVERHEAD
    if allowed.limit is None or allowed.limit >= needed or allowed.can_raise:
        return None
    return (
        f"VFIO locks the guest's memory: {needed // _MIB} MiB with libvirt's reserve, and this container may lock "
        f"{allowed.limit // _MIB} MiB; give it the capability SYS_RESOURCE (securityContext.capabilities.add), or "
        "start the container runtime with unlimited memlock (LimitMEMLOCK=infinity)"
    )
