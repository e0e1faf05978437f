"""spec.domain.cpu."""

from typing import Annotated, Literal

from launcher.manifest.scalars import Count, matching
from launcher.model import model

CPUName = Annotated[
    str,
    matching("[A-Za-z0-9_.-]+", "is not the name of a CPU model or feature, like Skylake-Server or sse4.2"),
]


@model
class CPUFeature:
    name: CPUName
    policy: Literal["force", "require", "optional", "disable", "forbid"] = "require"


@model
class NUMAGuestMappingPassthrough:
    pass


@model
class NUMA:
    guestMappingPassthrough: NUMAGuestMappingPassthrough | None = None


@model
class Realtime:
    mask: str | None = None


@model
class CPU:
    """0 stands for "not said", as for KubeVirt."""

    sockets: Count = 0
    cores: Count = 0
    threads: Count = 0
    maxSockets: Count = 0
    model: CPUName = "host-model"
    features: tuple[CPUFeature, ...] = ()
    dedicatedCpuPlacement: bool = False
    isolateEmulatorThread: bool = False
    numa: NUMA | None = None
    realtime: Realtime | None = None
