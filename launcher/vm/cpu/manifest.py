"""spec.domain.cpu."""

import re
from math import prod
from typing import Annotated, Any, Literal, Self

from pydantic import model_validator

from launcher.fields.objects import Below, Ignored, Items, Object
from launcher.fields.scalars import Count, Matching, Text, first_twice
from launcher.vm.memory.manifest import Memory, Resources, check_memory
from program.errors import Nonsense

#: Libvirt's qemu_validate.c refuses more without an IOMMU with extended interrupts; QEMU's virt machine has 512.
_MOST_VCPUS = {"amd64": 255, "arm64": 512}

CPUName = Annotated[
    Text,
    Matching(
        "[A-Za-z0-9_.-]+",
        "is not the name of a CPU model or feature",
        "expected one like Skylake-Server or sse4.2",
    ),
]


class CPUFeature(Object):
    name: CPUName
    policy: Literal["force", "require", "optional", "disable", "forbid"] = "require"


class NUMAGuestMappingPassthrough(Object):
    pass


class NUMA(Object):
    guestMappingPassthrough: NUMAGuestMappingPassthrough | None = None


class Realtime(Object):
    """Real-time scheduling of the vCPUs in `mask`, as `0-3,^1`; of all without one."""

    mask: (
        Annotated[
            Text,
            Matching(
                r" *(\^?[0-9]{1,4}|[0-9]{1,4}-[0-9]{1,4}) *(, *(\^?[0-9]{1,4}|[0-9]{1,4}-[0-9]{1,4}) *)*|",
                "is no mask of vCPUs",
                "expected one like 0-3,^1",
            ),
        ]
        | None
    ) = None

    def vcpus(self, count: int) -> tuple[int, ...]:
        """Return the masked ones of `count` vCPUs, ascending; Nonsense if the mask has others, or leaves none.

        As KubeVirt's handler reads it (pkg/virt-handler/realtime.go): what is excluded stays so wherever it stands.
        """
        if not self.mask:
            return tuple(range(count))
        included, excluded = set[int](), set[int]()
        for part in self.mask.replace(" ", "").split(","):
            first, last = (int(end) for end in (re.findall("[0-9]+", part) * 2)[:2])
            if not first <= last < count:
                raise Nonsense(
                    f"{self.mask!r}: {part} is not of the guest's vCPUs", f"expected some of 0 to {count - 1}"
                )
            (excluded if part.startswith("^") else included).update(range(first, last + 1))
        if not included - excluded:
            raise Nonsense(f"{self.mask!r} leaves no vCPU", "expected one like 0-3,^1, or no mask for all")
        return tuple(sorted(included - excluded))


class CPU(Object):
    """The guest's CPUs. 0 sockets, cores or threads are as good as none given, as for KubeVirt."""

    sockets: Count = 0
    cores: Count = 0
    threads: Count = 0
    maxSockets: Annotated[
        Any, Ignored("it is headroom for hotplug, which there is not: a guest has its CPUs from its start")
    ] = None
    model: CPUName | None = None
    features: Items[CPUFeature] = ()
    dedicatedCpuPlacement: bool = False
    isolateEmulatorThread: bool = False
    numa: NUMA | None = None
    realtime: Realtime | None = None

    @property
    def passes_numa_through(self) -> bool:
        return self.numa is not None and self.numa.guestMappingPassthrough is not None

    def topology(self, resources: Resources) -> tuple[int, int, int]:
        """Return sockets, cores and threads, each at least 1.

        If the manifest says none of them, the pod's CPUs become sockets: its limit, else its request (KubeVirt,
        SetDefaultGuestCPUTopology in pkg/defaults).
        """
        if not (self.sockets or self.cores or self.threads):
            return (resources.limit("cpu") or resources.request("cpu") or 1, 1, 1)
        return (self.sockets or 1, self.cores or 1, self.threads or 1)

    def vcpus(self, resources: Resources) -> int:
        return prod(self.topology(resources))

    @model_validator(mode="after")
    def _check(self) -> Self:
        if name := first_twice(feature.name for feature in self.features):
            raise Below("features", f"{name!r} is there twice", "leave one of them out")
        pinned = "dedicatedCpuPlacement: true"
        if self.isolateEmulatorThread and not self.dedicatedCpuPlacement:
            raise Nonsense("isolateEmulatorThread needs CPUs of the pod's own", f"write {pinned}, or leave it out")
        if self.passes_numa_through and not self.dedicatedCpuPlacement:
            raise Nonsense("numa.guestMappingPassthrough needs CPUs of the pod's own", f"write {pinned}")
        if self.realtime is not None and not self.passes_numa_through:
            raise Nonsense(f"realtime needs {pinned} and numa.guestMappingPassthrough", "write both, or leave it out")
        if self.dedicatedCpuPlacement and self.threads > 2:
            raise Nonsense(f"has {self.threads} threads and dedicatedCpuPlacement", "expected 1 or 2, as cores have")
        return self


def check_sizes(cpu: CPU, memory: Memory, resources: Resources) -> None:
    """Raise Nonsense for a guest whose CPUs and memory do not fit each other, or the pod's resources."""
    if cpu.passes_numa_through and memory.hugepages is None:
        raise Below(
            "cpu.numa.guestMappingPassthrough",
            "needs memory of each NUMA node",
            "write memory.hugepages as well, with a page size of the node's",
        )
    check_memory(memory, resources)
    if cpu.realtime is not None:
        try:
            cpu.realtime.vcpus(cpu.vcpus(resources))
        except Nonsense as error:
            raise Below("cpu.realtime.mask", error.wrong, error.fix) from None


def check_vcpus(cpu: CPU, resources: Resources, architecture: str) -> None:
    """Raise Nonsense for more vCPUs, or others, than the architecture's machines have."""
    most = _MOST_VCPUS[architecture]
    if (count := cpu.vcpus(resources)) > most:
        raise Below("domain.cpu", f"has {count} vCPUs", f"expected at most {most} on {architecture}")
    if architecture == "arm64" and cpu.model not in (None, "host-passthrough"):
        raise Below("domain.cpu.model", repr(cpu.model), "expected host-passthrough on arm64, or leave it out")
    if architecture == "arm64" and cpu.threads > 1:
        raise Below("domain.cpu.threads", str(cpu.threads), "expected 1 on arm64, whose cores have one")
