"""spec.domain.memory and spec.domain.resources."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from launcher.fields.objects import Ignored, Object
from launcher.fields.scalars import ExactQuantity, Quantity, Text
from program.errors import Nonsense

_LEAST = 10**6  # what KubeVirt asks of a request for memory
_MOST = 1 << 52  # 4 PiB, which is all that x86-64 and arm64 can address (52 bits)
_SMALLEST_HUGEPAGE = 1 << 16


def check_memory_size(size: int) -> int:
    """Return the bytes; Nonsense if no guest can have so many."""
    if not _LEAST <= size <= _MOST:
        raise Nonsense(f"{size} bytes", f"expected {_LEAST} to {_MOST}")
    return size


def _check_hugepage_size(size: int) -> int:
    if size < _SMALLEST_HUGEPAGE or size & (size - 1):
        raise Nonsense(f"{size} bytes are the size of no hugepage", "expected one of the node's, like 2Mi or 1Gi")
    return size


MemorySize = Annotated[Quantity, AfterValidator(check_memory_size)]
HugepageSize = Annotated[Quantity, AfterValidator(_check_hugepage_size)]


class Hugepages(Object):
    pageSize: HugepageSize


class ReservedOverhead(Object):
    """Memory of the pod beside the guest's. `addedOverhead`: bytes beside all that is known to be needed."""

    addedOverhead: Quantity | None = None
    memLock: Annotated[Any, Ignored("what VFIO is to lock is asked for before the start anyway")] = None


class Resources(Object):
    """What the pod asks for, by resource name; the guest's size comes from `cpu` and `memory` first.

    `overcommitGuestOverhead`: the pod asks for the guest's memory alone, and not for what there is beside it.
    """

    requests: Mapping[Text, ExactQuantity] = {}
    limits: Mapping[Text, ExactQuantity] = {}
    overcommitGuestOverhead: bool = False

    def request(self, name: str) -> int | None:
        """Return the request in whole units; None if there is none."""
        return request.whole if (request := self.requests.get(name)) is not None else None

    def limit(self, name: str) -> int | None:
        """Return the limit in whole units; None if there is none."""
        return limit.whole if (limit := self.limits.get(name)) is not None else None


class Memory(Object):
    guest: MemorySize | None = None
    maxGuest: Annotated[
        Any, Ignored("it is headroom for hotplug, which there is not: a guest has its memory from its start")
    ] = None
    hugepages: Hugepages | None = None
    reservedOverhead: ReservedOverhead | None = None

    def of_guest(self, resources: Resources) -> int | None:
        """Return bytes: `guest`, else the pod's request, else its limit, else one hugepage (KubeVirt, setGuestMemory in
        pkg/defaults); None if nothing says it."""
        page = self.hugepages.pageSize if self.hugepages is not None else None
        return self.guest or resources.request("memory") or resources.limit("memory") or page


def check_memory(memory: Memory, resources: Resources) -> None:
    """Raise Nonsense for a guest's memory that its limit or its hugepages do not allow."""
    size, limit = memory.of_guest(resources), resources.limit("memory")
    if size is None:
        return
    if memory.guest is None:
        try:
            check_memory_size(size)
        except Nonsense as error:
            raise Nonsense(f"the guest's memory, as resources say it, is {error.wrong}", error.fix) from None
    if limit and size > limit:
        raise Nonsense(
            f"the guest's memory of {size} bytes is more than resources.limits.memory, which is {limit}: the kernel "
            "would kill it",
            "expected a limit above it",
        )
    if memory.hugepages is not None and size % memory.hugepages.pageSize:
        raise Nonsense(
            f"the guest's memory of {size} bytes is no multiple of memory.hugepages.pageSize",
            f"expected a multiple of {memory.hugepages.pageSize}",
        )
