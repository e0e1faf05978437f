"""/dev/iommu, opened for QEMU while this process may still choose how IOMMUFD counts the memory that QEMU pins.

IOMMUFD adds up the memory that all processes of one user on the node have pinned, and compares the sum with the
RLIMIT_MEMLOCK of the process that pins more. With CAP_SYS_RESOURCE it can be made to count for each process, as VFIO's
groups do, before an object is made (drivers/iommu/iommufd/ioas.c, iommufd_option_rlimit_mode;
include/uapi/linux/iommufd.h, struct iommu_option). libvirt leaves that to the process that passes it the descriptor.
"""

import fcntl
import os
import struct
from pathlib import Path
from typing import NamedTuple

_IOMMU_OPTION = ord(";") << 8 | 0x87
# size, option_id, op, __reserved, object_id, val64: IOMMU_OPTION_RLIMIT_MODE is 0, and so is IOMMU_OPTION_OP_SET.
_PER_PROCESS = struct.pack("=IIHHIQ", 24, 0, 0, 0, 0, 1)


class IOMMUFD(NamedTuple):
    """The open /dev/iommu, and whether the kernel counts its pinned memory for each process."""

    descriptor: int
    counts_per_process: bool


def opened(device: Path = Path("/dev/iommu")) -> IOMMUFD | None:
    """Open the device, and have it count for each process if this process may choose; None if it cannot be opened."""
    try:
        descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.ioctl(descriptor, _IOMMU_OPTION, _PER_PROCESS)
    except OSError:
        return IOMMUFD(descriptor, counts_per_process=False)
    return IOMMUFD(descriptor, counts_per_process=True)
