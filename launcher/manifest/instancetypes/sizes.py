"""The fields of a VM that an instance type sets, and conflicts with the VM's own (KubeVirt's
pkg/instancetype/apply)."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from launcher.fields.objects import dotted
from launcher.manifest.instancetypes.draft import Draft, Path, value_at
from launcher.manifest.instancetypes.kinds import Instancetype, PreferenceSpec
from program.errors import Nonsense
from program.problem import Problem, excerpt


class Applied(NamedTuple):
    """An instance type or a preference: its name in errors, and its spec as written."""

    name: str
    spec: Mapping[str, Any]

    def at(self, path: Path) -> str:
        """Return the name of one of its fields in errors."""
        return f"spec.{dotted(path)} of {self.name}"


_CPU: Path = ("domain", "cpu")
_MEMORY: Path = ("domain", "memory")
_RESOURCES: Path = ("domain", "resources")

#: What an instance type always says, and the VM's fields that say the same. Only the first of a list is filled in.
DECIDED: Mapping[Path, tuple[Path, ...]] = {
    ("cpu", "guest"): (
        (*_CPU, "sockets"),
        (*_CPU, "cores"),
        (*_CPU, "threads"),
        (*_RESOURCES, "requests", "cpu"),
        (*_RESOURCES, "limits", "cpu"),
    ),
    ("memory", "guest"): (
        (*_MEMORY, "guest"),
        (*_RESOURCES, "requests", "memory"),
        (*_RESOURCES, "limits", "memory"),
    ),
}
#: What it may say, and the VM's field that gets it.
COPIED: Mapping[Path, Path] = {
    ("cpu", "model"): (*_CPU, "model"),
    ("cpu", "dedicatedCPUPlacement"): (*_CPU, "dedicatedCpuPlacement"),
    ("cpu", "isolateEmulatorThread"): (*_CPU, "isolateEmulatorThread"),
    ("cpu", "numa"): (*_CPU, "numa"),
    ("cpu", "realtime"): (*_CPU, "realtime"),
    ("memory", "hugepages"): (*_MEMORY, "hugepages"),
    ("memory", "maxGuest"): (*_MEMORY, "maxGuest"),
    ("gpus",): ("domain", "devices", "gpus"),
    ("hostDevices",): ("domain", "devices", "hostDevices"),
    ("ioThreadsPolicy",): ("domain", "ioThreadsPolicy"),
    ("ioThreads", "supplementalPoolThreadCount"): ("domain", "ioThreads", "supplementalPoolThreadCount"),
    ("launchSecurity",): ("domain", "launchSecurity"),
    ("nodeSelector",): ("nodeSelector",),
    ("schedulerName",): ("schedulerName",),
}

_THREADS_PER_CORE = 2
_LONGEST_NAME = 253  # of an annotation, with its prefix


def conflicts(draft: Draft, applied: Applied, subject: str) -> Iterator[Problem]:
    """Yield a Problem for each field that both the VM and its instance type set.

    `subject` stands before the path of a field of the VM.
    """
    said_twice = [
        *((source, field) for source, fields in DECIDED.items() for field in fields),
        *COPIED.items(),
    ]
    for source, field in said_twice:
        theirs, ours = value_at(applied.spec, source), draft.get(*field)
        if _says_something(ours) and theirs is not None and theirs != []:
            yield _conflict(subject, f"spec.{dotted(field)}", ours, applied.at(source), theirs)
    theirs = value_at(applied.spec, ("annotations",))
    for name, value in theirs.items() if isinstance(theirs, dict) else ():
        if (ours := draft.annotations().get(name, value)) != value:
            short = name[:_LONGEST_NAME]
            yield _conflict(subject, f"metadata.annotations.{short}", ours, applied.at(("annotations", short)), value)


def fill_in(draft: Draft, instancetype: Instancetype, applied: Applied, preference: PreferenceSpec) -> None:
    """Fill in the instance type's fields; conflicts() has made sure that the VM sets none of them."""
    for source, field in COPIED.items():
        if (value := value_at(applied.spec, source)) is not None and value != []:
            draft.set(field, value, applied.at(source))
    cpu, memory = instancetype.spec.cpu, instancetype.spec.memory
    names = ("sockets", "cores", "threads")
    for name, count in zip(names, topology(cpu.guest, preference), strict=True):
        draft.set((*_CPU, name), count, applied.at(("cpu", "guest")))
    draft.set((*_MEMORY, "guest"), value_at(applied.spec, ("memory", "guest")), applied.at(("memory", "guest")))
    if memory.overcommitPercent:
        request = memory.guest * (100 - memory.overcommitPercent) // 100
        draft.set((*_RESOURCES, "requests", "memory"), request, applied.at(("memory", "overcommitPercent")))
    for name, value in instancetype.spec.annotations.items():
        draft.fill_annotation(name, value, applied.at(("annotations", name)))


def topology(vcpus: int, preference: PreferenceSpec) -> tuple[int, int, int]:
    """Return the sockets, cores and threads that a preference gives to vCPUs; Nonsense if it cannot spread them."""
    if vcpus == 1:
        return (1, 1, 1)
    match preference.topology:
        case "cores":
            return (1, vcpus, 1)
        case "threads":
            return (1, 1, vcpus)
        case "spread":
            return _spread(vcpus, preference)
        case _:
            return (vcpus, 1, 1)


def _spread(vcpus: int, preference: PreferenceSpec) -> tuple[int, int, int]:
    ratio = preference.spread_ratio
    match preference.cpu.spreadOptions.across:
        case "SocketsCores":
            per_socket, spread = ratio, (vcpus // ratio, ratio, 1)
        case "CoresThreads":
            per_socket, spread = ratio, (1, vcpus // ratio, ratio)
        case "SocketsCoresThreads":
            per_socket = ratio * _THREADS_PER_CORE
            spread = (vcpus // per_socket, ratio, _THREADS_PER_CORE)
    if vcpus % per_socket:
        wrong = f"is {vcpus}, which is no multiple of the {per_socket} vCPUs by which the preference spreads them"
        raise Nonsense(wrong, f"expected a multiple of {per_socket}, or another preference")
    return spread


def _conflict(subject: str, field: str, ours: object, source: str, theirs: object) -> Problem:
    wrong = f"is {excerpt(ours)}, and {source} is {excerpt(theirs)}"
    return Problem(f"{subject}spec.template.{field}", wrong, "leave it out of the VM, whose instance type says it")


def _says_something(value: object) -> bool:
    """Return whether a field of the VM is set: 0 CPUs, false and an empty list count as unset."""
    return value is not None and value is not False and value not in (0, [])
