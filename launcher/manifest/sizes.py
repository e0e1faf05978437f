"""How big a guest is: its vCPUs and its memory, of which cpu, memory and resources each say a part."""

from launcher.manifest.cpu import CPU
from launcher.manifest.memory import Memory, Resources, check_memory_size
from launcher.manifest.objects import Below
from program.errors import Nonsense

#: Libvirt's qemu_validate.c refuses more without an IOMMU with extended interrupts; QEMU's virt machine has 512.
_MOST_VCPUS = {"amd64": 255, "arm64": 512}


def topology(cpu: CPU, resources: Resources) -> tuple[int, int, int]:
    """Return sockets, cores and threads, each at least 1.

    Where the manifest says none of them, the pod's CPUs become sockets: its limit, else its request (KubeVirt,
    SetDefaultGuestCPUTopology in pkg/defaults).
    """
    if not (cpu.sockets or cpu.cores or cpu.threads):
        return (resources.limit("cpu") or resources.request("cpu") or 1, 1, 1)
    return (cpu.sockets or 1, cpu.cores or 1, cpu.threads or 1)


def vcpus(cpu: CPU, resources: Resources) -> int:
    sockets, cores, threads = topology(cpu, resources)
    return sockets * cores * threads


def guest_memory(memory: Memory, resources: Resources) -> int | None:
    """Return bytes: memory.guest, else the pod's request, else its limit, else one hugepage (KubeVirt, setGuestMemory
    in pkg/defaults); None if nothing says it."""
    page = memory.hugepages.pageSize if memory.hugepages is not None else None
    return memory.guest or resources.request("memory") or resources.limit("memory") or page


def check_sizes(cpu: CPU, memory: Memory, resources: Resources) -> None:
    """Raise Nonsense for a guest whose parts do not fit each other."""
    if cpu.passes_numa_through and memory.hugepages is None:
        raise Below(
            "cpu.numa.guestMappingPassthrough",
            "needs memory of each NUMA node",
            "write memory.hugepages as well, with a page size of the node's",
        )
    if (size := guest_memory(memory, resources)) is not None:
        _check_memory(size, memory, resources.limit("memory"))
    if cpu.realtime is not None:
        try:
            cpu.realtime.vcpus(vcpus(cpu, resources))
        except Nonsense as error:
            raise Below("cpu.realtime.mask", error.wrong, error.fix) from None


def _check_memory(size: int, memory: Memory, limit: int | None) -> None:
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


def check_vcpus(cpu: CPU, resources: Resources, architecture: str) -> None:
    """Raise Nonsense for more vCPUs, or others, than the architecture's machines have."""
    most = _MOST_VCPUS[architecture]
    if (count := vcpus(cpu, resources)) > most:
        raise Below("domain.cpu", f"has {count} vCPUs", f"expected at most {most} on {architecture}")
    if architecture == "arm64" and cpu.model not in (None, "host-passthrough"):
        raise Below("domain.cpu.model", repr(cpu.model), "expected host-passthrough on arm64, or leave it out")
    if architecture == "arm64" and cpu.threads > 1:
        raise Below("domain.cpu.threads", str(cpu.threads), "expected 1 on arm64, whose cores have one")
