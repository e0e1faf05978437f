"""Whether a guest has what its preference requires (KubeVirt's pkg/instancetype/preference/requirements)."""

from collections.abc import Iterator

from launcher.manifest.instancetypes.draft import Path
from launcher.manifest.instancetypes.kinds import Instancetype, PreferenceSpec
from launcher.manifest.instancetypes.sizes import Applied
from launcher.manifest.sizes import guest_memory
from launcher.manifest.spec import VirtualMachineInstance
from launcher.quantity import written
from program.problem import Problem

#: Of which of sockets, cores and threads the vCPUs are that count; what is spread counts by what it is spread across.
_COUNTED = {"sockets": (0,), "cores": (1,), "threads": (2,), "any": (0, 1, 2)}
_SPREAD = {"SocketsCores": (0, 1), "CoresThreads": (1, 2), "SocketsCoresThreads": (0, 1, 2)}
_NAMES = ("sockets", "cores", "threads")


def unmet(
    vmi: VirtualMachineInstance,
    instancetype: Instancetype | None,
    preference: PreferenceSpec,
    applied: Applied,
    subject: str,
) -> Iterator[Problem]:
    """Yield a Problem for each requirement of the preference that the guest does not meet.

    `subject` stands before the path of a field of the VM.
    """
    required, spec = preference.requirements, vmi.spec

    def problem(field: str, amount: str, path: Path, least: object) -> Problem:
        where = "spec.instancetype" if instancetype is not None else f"spec.template.spec.{field}"
        fix = "expected that at least; or name another preference"
        return Problem(f"{subject}{where}", f"gives the guest {amount}, and {applied.at(path)} is {least}", fix)

    if required.cpu is not None:
        count, of = _vcpus(vmi, instancetype, preference)
        if count < required.cpu.guest:
            yield problem("domain.cpu", f"{count} {of}", ("requirements", "cpu", "guest"), required.cpu.guest)
    if required.memory is not None:
        size = guest_memory(spec.domain.memory, spec.domain.resources)
        if size is not None and size < required.memory.guest:
            least = written(required.memory.guest)
            yield problem("domain.memory", f"{written(size)} of memory", ("requirements", "memory", "guest"), least)
    if required.architecture is not None and required.architecture != spec.architecture:
        wrong = f"is {spec.architecture}, and {applied.at(('requirements', 'architecture'))} is {required.architecture}"
        yield Problem(f"{subject}spec.template.spec.architecture", wrong, "write that, or name another preference")


def _vcpus(
    vmi: VirtualMachineInstance, instancetype: Instancetype | None, preference: PreferenceSpec
) -> tuple[int, str]:
    """Return how many vCPUs count, and of what: KubeVirt counts a VM's own where its preference would put them."""
    if instancetype is not None:
        return instancetype.spec.cpu.guest, "vCPUs"
    counted = _COUNTED.get(preference.topology) or _SPREAD[preference.cpu.spreadOptions.across]
    topology, count = vmi.spec.domain.topology, 1
    for index in counted:
        count *= topology[index]
    return count, " x ".join(_NAMES[index] for index in counted)
