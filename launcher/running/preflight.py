"""What a start would fail for, done or said before it."""

import resource
from pathlib import Path

from launcher.errors import Refusal

#: Beside the guest's memory, for what else of its process VFIO may map (libvirt, qemuDomainGetMemLockLimitBytes).
_VFIO_OVERHEAD = 1 << 30
_MIB = 1 << 20


def let_vfio_lock(guest_memory: int) -> None:
    """Raise this process's hard RLIMIT_MEMLOCK, which QEMU inherits, to what a guest with host devices needs.

    VFIO pins the whole guest, so libvirt gives QEMU a limit of the guest's memory, in bytes, and 1 GiB. Refusal, in
    numbers and with what mends it, where the limit is lower and the kernel lets nobody raise it here: that takes
    CAP_SYS_RESOURCE (setrlimit(2)), and not just in a user namespace.
    """
    needed = guest_memory + _VFIO_OVERHEAD
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, needed))
    except (ValueError, OSError) as error:  # ValueError is Python's for EPERM
        raise Refusal(
            f"VFIO locks the guest's memory: {needed // _MIB} MiB with libvirt's reserve, and this container may lock "
            f"{hard // _MIB} MiB; give it the capability SYS_RESOURCE (securityContext.capabilities.add), or start the "
            "container runtime with unlimited memlock (LimitMEMLOCK=infinity)"
        ) from error


def has_kvm(device: Path, *, emulation_allowed: bool) -> bool:
    """Whether guests of this container's QEMU run under KVM. Refusal where they don't, and nobody has allowed that.

    QEMU's own CPU is some fifty times slower, so nobody is given one who has not asked for it.
    """
    if device.exists():
        return True
    if emulation_allowed:
        return False
    raise Refusal(
        f"there is no {device}, and the guest would have QEMU's own, slow CPU: give the container the device (a "
        "resource like devices.gpu-launcher.dev/kvm), or allow it with --emulation, or with the annotation "
        'gpu-launcher.dev/allow-emulation: "true"'
    )
