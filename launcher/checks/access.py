"""Whether a file, a directory, a device or a socket can be opened, /dev/kvm above all.

The only way to know is to open it: modes and capabilities don't tell what a container's device cgroup allows
(cgroups(7)). Opening a VFIO group or /dev/kvm does nothing to it.
"""

import errno
import os
from pathlib import Path

from launcher import paths
from launcher.checks.finding import error, warning
from launcher.checks.wording import POD, Wording
from launcher.guest import Guest
from program.finding import Finding

#: The errno of open(2); None if the file can be opened.
Outcome = int | None

_ALLOW = 'or allow it with --emulation, or with the annotation gpu-launcher.dev/allow-emulation: "true"'


def opened(path: Path, *, writing: bool = True) -> Outcome:
    """Open the file and close it again."""
    try:
        os.close(os.open(path, (os.O_RDWR if writing else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return error.errno or errno.EIO
    return None


def is_missing(outcome: Outcome) -> bool:
    return outcome in (errno.ENOENT, errno.ENOTDIR)


def because(outcome: int) -> str:
    """`Permission denied`."""
    return os.strerror(outcome)


def quotes(guest: Guest, root: Path, wording: Wording = POD) -> Finding | None:
    """Return why QEMU, with this root, cannot reach the service that signs a confidential guest's quotes."""
    if guest.confidentiality is None or (socket := guest.confidentiality.quote_socket) is None:
        return None
    outcome = opened(paths.below(root, socket))
    if outcome == errno.ENXIO:  # open(2) of a socket that the caller may read and write
        return None
    because_of = "is not there" if outcome is None or is_missing(outcome) else f"cannot be opened: {because(outcome)}"
    without = "the guest starts, but gets no quotes by which a remote party attests it"
    return warning(socket, f"{because_of}, and {without}", wording.no_quotes)


def kvm(device: Path, outcome: Outcome, *, emulation_allowed: bool, wording: Wording = POD) -> Finding | None:
    """Return what is wrong with `device`, /dev/kvm, by the outcome of opening it. QEMU's own CPU is some fifty times
    slower, so a guest gets it only if its manifest or a flag allows that.
    """
    if outcome is None or (emulation_allowed and is_missing(outcome)):
        return None
    without = "the guest would have QEMU's own, slow CPU"
    if is_missing(outcome):
        return error(device, f"is not there, and {without}", f"{wording.kvm_missing}, {_ALLOW}")
    if emulation_allowed:
        says = f"cannot be opened: {because(outcome)}, and the guest has QEMU's own, slow CPU"
        return warning(device, says, wording.kvm_closed)
    return error(device, f"cannot be opened: {because(outcome)}, and {without}", f"{wording.kvm_closed}, {_ALLOW}")
