"""How much memory QEMU has to be able to lock (RLIMIT_MEMLOCK): all of the guest's, where devices reach it by DMA."""

from collections.abc import Iterable

from launcher.checks.finding import error
from launcher.guest import Guest
from launcher.hostdevs import GuestCard
from pci.resource import USBAddress
from program.finding import Finding

#: Beside the guest's memory, for what else of its process VFIO may map (libvirt, qemuDomainGetMemLockLimitBytes).
_RESERVE = 1 << 30
_MIB = 1 << 20


def to_be_locked(guest: Guest, cards: Iterable[GuestCard]) -> int:
    """Bytes; 0 where nothing has to be locked.

    What libvirt gives a QEMU with VFIO: the guest's memory, in whole MiB, and 1 GiB. That is once for all devices: only
    with an IOMMU in the guest, or with vDPA, does each count, and our domains have neither. SEV pins the guest too, and
    libvirt gives it nothing for that (docs/kbase/launch_security_sev.rst, "Memory").
    """
    is_pinned = guest.confidentiality is not None and guest.confidentiality.pins_memory
    if not is_pinned and all(isinstance(card.device, USBAddress) for card in cards):
        return 0
    return -(-guest.memory // _MIB) * _MIB + _RESERVE


def memlock(needed: int, limit: int | None) -> Finding | None:
    """`limit` is what a QEMU of this process may lock, in bytes, when it has been raised as far as it can be; None is
    without limit."""
    if limit is None or limit >= needed:
        return None
    return error(
        "RLIMIT_MEMLOCK",
        f"VFIO and SEV lock the guest's memory: {needed // _MIB} MiB with libvirt's reserve, and this container may "
        f"lock {limit // _MIB} MiB",
        "give it the capability SYS_RESOURCE (securityContext.capabilities.add), or start the container runtime with "
        "unlimited memlock (LimitMEMLOCK=infinity)",
    )
