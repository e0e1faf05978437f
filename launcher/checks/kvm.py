"""Whether the guest can run under KVM, and not on QEMU's own CPU, which is some fifty times slower."""

from pathlib import Path

from launcher.checks.access import Outcome, because, is_missing
from launcher.checks.finding import error, warning
from program.finding import Finding

_GIVE = "give the container the device (a resource like devices.gpu-launcher.dev/kvm)"
_ALLOW = 'or allow it with --emulation, or with the annotation gpu-launcher.dev/allow-emulation: "true"'


def kvm(device: Path, outcome: Outcome, *, emulation_allowed: bool) -> Finding | None:
    """What there is to say of `device`, /dev/kvm, when opening it came to this.

    Nobody is given QEMU's own CPU who has not asked for it.
    """
    if outcome is None or (emulation_allowed and is_missing(outcome)):
        return None
    without = "the guest would have QEMU's own, slow CPU"
    if is_missing(outcome):
        return error(device, f"is not there, and {without}", f"{_GIVE}, {_ALLOW}")
    if emulation_allowed:
        return warning(device, f"cannot be opened: {because(outcome)}, and the guest has QEMU's own, slow CPU", _GIVE)
    return error(device, f"cannot be opened: {because(outcome)}, and {without}", f"{_GIVE}, {_ALLOW}")
