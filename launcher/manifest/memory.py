"""spec.domain.memory and spec.domain.resources."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from launcher.manifest.scalars import QUANTITY, Quantity, quantity
from launcher.model import Ignored, Reads, model

_NOTHING: Mapping[str, int] = MappingProxyType({})
_LEAST = 10**6  # what KubeVirt asks of a request for memory
_MOST = 1 << 52  # 4 PiB, which is all that x86-64 and arm64 can address (52 bits)
_SMALLEST_HUGEPAGE = 1 << 16


def memory_size(value: Any) -> int:
    """Bytes that a guest can have; ValueError for others."""
    size = quantity(value)
    if not _LEAST <= size <= _MOST:
        raise ValueError(f"{size} bytes; expected {_LEAST} to {_MOST}")
    return size


def _hugepage_size(value: Any) -> int:
    size = quantity(value)
    if size < _SMALLEST_HUGEPAGE or size & (size - 1):
        raise ValueError(f"{size} bytes are the size of no hugepage; expected one of the node's, like 2Mi or 1Gi")
    return size


MemorySize = Annotated[int, Reads(memory_size, QUANTITY)]
HugepageSize = Annotated[int, Reads(_hugepage_size, QUANTITY)]


@model
class Hugepages:
    pageSize: HugepageSize


@model
class Memory:
    guest: MemorySize | None = None
    maxGuest: Annotated[
        Any, Ignored("it is headroom for hotplug, which there is not: a guest has its memory from its start")
    ] = None
    hugepages: Hugepages | None = None
    reservedOverhead: Annotated[
        Any, Ignored("it is about the pod's memory limit; what VFIO is to lock is asked for before the start anyway")
    ] = None


@model
class Resources:
    """By resource name; the guest's size comes from `cpu` and `memory`, the rest is between the pod and its node."""

    requests: Mapping[str, Quantity] = _NOTHING
    limits: Mapping[str, Quantity] = _NOTHING
    overcommitGuestOverhead: Annotated[Any, Ignored("it is about what the pod requests beside the guest's memory")] = (
        None
    )
