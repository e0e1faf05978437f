"""spec.domain.memory and spec.domain.resources."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from launcher.manifest.scalars import QUANTITY, Quantity, amount, quantity
from launcher.model import Ignored, Reads, model
from launcher.quantity import Amount

_NOTHING: Mapping[str, Amount] = MappingProxyType({})
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


ResourceAmount = Annotated[Amount, Reads(amount, QUANTITY)]
MemorySize = Annotated[int, Reads(memory_size, QUANTITY)]
HugepageSize = Annotated[int, Reads(_hugepage_size, QUANTITY)]


@model
class Hugepages:
    pageSize: HugepageSize


@model
class ReservedOverhead:
    """`addedOverhead`: bytes of the pod's beside the guest's memory, and beside all that is known to be needed."""

    addedOverhead: Quantity | None = None
    memLock: Annotated[Any, Ignored("what VFIO is to lock is asked for before the start anyway")] = None


@model
class Memory:
    guest: MemorySize | None = None
    maxGuest: Annotated[
        Any, Ignored("it is headroom for hotplug, which there is not: a guest has its memory from its start")
    ] = None
    hugepages: Hugepages | None = None
    reservedOverhead: ReservedOverhead | None = None


@model
class Resources:
    """By resource name; the guest's size comes from `cpu` and `memory`, the rest is between the pod and its node.

    `overcommitGuestOverhead`: the pod asks for the guest's memory alone, and not for what there is beside it.
    """

    requests: Mapping[str, ResourceAmount] = _NOTHING
    limits: Mapping[str, ResourceAmount] = _NOTHING
    overcommitGuestOverhead: bool = False

    def request(self, name: str) -> int | None:
        """In whole units; None where nothing is requested."""
        found = self.requests.get(name)
        return None if found is None else found.whole

    def limit(self, name: str) -> int | None:
        """In whole units; None where there is no limit."""
        found = self.limits.get(name)
        return None if found is None else found.whole
