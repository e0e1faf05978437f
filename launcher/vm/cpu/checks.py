"""Whether the guest gets its CPUs: KVM, and the container's share of the node's CPUs."""

from pathlib import Path

from launcher.vm.checks import POD, Outcome, Wording, because, error, is_missing, warning
from launcher.vm.guest import Guest
from program.finding import Finding

_ALLOW = 'or allow it with --emulation, or with the annotation gpu-launcher.dev/allow-emulation: "true"'


def kvm(device: Path, outcome: Outcome, *, emulation_allowed: bool, wording: Wording = POD) -> Finding | None:
    """Return what is wrong with `device`, /dev/kvm, by the outcome of opening it. QEMU's own CPU is about fifty times
    slower, so a guest gets it only if its manifest or a flag allows that."""
    if outcome is None or (emulation_allowed and is_missing(outcome)):
        return None
    without = "the guest would have QEMU's own, slow CPU"
    if is_missing(outcome):
        return error(device, f"is not there, and {without}", f"{wording.kvm_missing}, {_ALLOW}")
    if emulation_allowed:
        says = f"cannot be opened: {because(outcome)}, and the guest has QEMU's own, slow CPU"
        return warning(device, says, wording.kvm_closed)
    return error(device, f"cannot be opened: {because(outcome)}, and {without}", f"{wording.kvm_closed}, {_ALLOW}")


def cpus(guest: Guest, quota: float | None) -> Finding | None:
    if quota is None or quota >= guest.vcpus:
        return None
    return warning(
        "the container's CPU limit",
        f"is {quota:g} CPUs, and the guest has {guest.vcpus} vCPUs: they stand still for a part of each tenth of a "
        "second",
        "raise resources.limits.cpu of the container, or leave it out",
    )
