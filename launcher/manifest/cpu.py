"""spec.domain.cpu."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import model_validator

from launcher.manifest.objects import Ignored, Items, Object
from launcher.manifest.scalars import Count, Matching, Text, first_twice
from program.errors import Nonsense

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

    @model_validator(mode="after")
    def _check(self) -> Self:
        if name := first_twice(feature.name for feature in self.features):
            raise Nonsense(f"the feature {name!r} is there twice", "leave one of them out")
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
