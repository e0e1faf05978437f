"""How big a guest is: its vCPUs and its memory, of which cpu, memory and resources each say a part."""

from launcher.manifest.cpu import CPU
from launcher.manifest.memory import Memory, Resources

#: Libvirt's qemu_validate.c refuses more without an IOMMU with extended interrupts; QEMU's virt machine has 512.
_MOST_VCPUS = {"amd64": 255, "arm64": 512}


def topology(cpu: CPU, resources: Resources) -> tuple[int, int, int]:
    """Sockets, cores and threads, each at least 1.

    Where the manifest says none of them, the pod's CPUs become sockets: its limit, else its request (KubeVirt,
    SetDefaultGuestCPUTopology in pkg/defaults).
    """
    if not (cpu.sockets or cpu.cores or cpu.threads):
        return (resources.limits.get("cpu") or resources.requests.get("cpu") or 1, 1, 1)
    return (cpu.sockets or 1, cpu.cores or 1, cpu.threads or 1)


def vcpus(cpu: CPU, resources: Resources) -> int:
    sockets, cores, threads = topology(cpu, resources)
    return sockets * cores * threads


def guest_memory(memory: Memory, resources: Resources) -> int | None:
    """Bytes: memory.guest, else the pod's request, else its limit, else one hugepage (KubeVirt, setGuestMemory in
    pkg/defaults); None where nothing says it."""
    page = memory.hugepages.pageSize if memory.hugepages is not None else None
    return memory.guest or resources.requests.get("memory") or resources.limits.get("memory") or page


def check_sizes(cpu: CPU, memory: Memory, resources: Resources) -> None:
    """ValueError for a guest whose parts do not fit each other."""
    if cpu.passes_numa_through and memory.hugepages is None:
        raise ValueError(
            "cpu.numa.guestMappingPassthrough needs memory of each NUMA node; write memory.hugepages as well, "
            "with a page size of the node's"
        )
    size = guest_memory(memory, resources)
    if size is not None and memory.hugepages is not None and size % memory.hugepages.pageSize:
        raise ValueError(
            f"the guest's memory of {size} bytes is no multiple of memory.hugepages.pageSize, which is "
            f"{memory.hugepages.pageSize}"
        )
    if cpu.realtime is not None:
        try:
            cpu.realtime.vcpus(vcpus(cpu, resources))
        except ValueError as error:
            raise ValueError(f"cpu.realtime.mask: {error}") from None


def check_vcpus(cpu: CPU, resources: Resources, architecture: str) -> None:
    """ValueError for more vCPUs, or others, than the architecture's machines have."""
    most = _MOST_VCPUS[architecture]
    if (count := vcpus(cpu, resources)) > most:
        raise ValueError(f"domain.cpu: {count} vCPUs; expected at most {most} on {architecture}")
    if architecture == "arm64" and cpu.model not in (None, "host-passthrough"):
        raise ValueError(f"domain.cpu.model: {cpu.model!r}; expected host-passthrough on arm64, or leave it out")
    if architecture == "arm64" and cpu.threads > 1:
        raise ValueError(f"domain.cpu.threads: {cpu.threads}; expected 1 on arm64, whose cores have one")
