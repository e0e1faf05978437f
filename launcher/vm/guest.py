"""The guest: the values on which its seats, CPUs, memory and firmware depend.

They come from a manifest (launcher.vm.from_spec) or from a libvirt domain that KubeVirt has written. Seats, NUMA
cells, pinning and the hole for BARs follow from a Guest and its claims; none of them reads a manifest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from launcher.vm.security.confidentiality import Confidentiality

#: As Kubernetes names them.
Architecture = Literal["amd64", "arm64"]
#: How much of the host's tree the guest gets; `Guest` says what each is.
Topology = Literal["none", "numa", "mirror"]

#: How many cards a guest has seats for, numbered from 0.
SEATS = 32
# The annotations that say where cards sit; errors name them for a guest from a domain too.
SEATS_OF = "gpu-launcher.dev/seats"
#: The annotation that says which option ROM a guest finds on its cards.
ROM_OF = "gpu-launcher.dev/rom"
NEAREST = "gpu-launcher.dev/machine"
#: Whether NVIDIA's GPUs may write to each other's memory, and whether BARs are mapped: launcher.vm.cards.peer_to_peer.
P2P, NO_MMAP = "gpu-launcher.dev/p2p", "gpu-launcher.dev/no-mmap"
#: By which of its two ways VFIO gives the guest its functions: launcher.vm.cards.xml.
VFIO = "gpu-launcher.dev/vfio"
TOPOLOGY = "gpu-launcher.dev/topology"
TOPOLOGY_POLICY = "gpu-launcher.dev/topology-policy"

_QEMU_ARCHITECTURES: Mapping[Architecture, str] = {"amd64": "x86_64", "arm64": "aarch64"}


class CPUTopology(NamedTuple):
    """Each at least 1."""

    sockets: int
    cores: int
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """`memory`: in bytes. `page`: the size of its hugepages in bytes, None without hugepages. `is_memfd`: the memory is
    a memfd. `is_shared`: other processes map it, as virtiofsd does by vhost-user.

    `has_own_cpus`: each vCPU is pinned to a CPU of the pod that nothing else uses; there are `emulator_cpus` for QEMU's
    other threads, and a CPU for each thread of `iothread_pool`. `iothreads`: the number of I/O threads, the pool's
    included; the others share these CPUs. `realtime`: the vCPUs that are scheduled in real time.
    `passes_numa_through`: the NUMA cells are the host's nodes of these CPUs, and no core is split over nodes.

    `topology`: cards are in the cell of their NUMA node (numa), and behind copies of the host's switches (mirror). If
    it `is_strict`, a card that cannot be there is refused. `seats`: pins entries to seats, by their names.
    """

    memory: int
    cpus: CPUTopology
    architecture: Architecture = "amd64"
    machine: str = "q35"
    is_efi: bool = False
    has_secure_boot: bool = False
    confidentiality: Confidentiality | None = None
    page: int | None = None
    is_memfd: bool = False
    is_shared: bool = False
    has_own_cpus: bool = False
    emulator_cpus: int = 0
    iothreads: int = 0
    iothread_pool: int = 0
    realtime: tuple[int, ...] = ()
    passes_numa_through: bool = False
    topology: Topology = "none"
    is_strict: bool = False
    seats: Mapping[str, int] = field(default_factory=dict)
    allows_emulation: bool = False
    reports_free_pages: bool = True
    has_transitional_virtio: bool = False

    @property
    def vcpus(self) -> int:
        return self.cpus.sockets * self.cpus.cores * self.cpus.threads

    @property
    def pod_cpus(self) -> int:
        """The number of CPUs that the pod needs for a guest with CPUs of its own."""
        return self.vcpus + self.iothread_pool + self.emulator_cpus

    @property
    def qemu_architecture(self) -> str:
        """The architecture's name in QEMU and libvirt: x86_64."""
        return _QEMU_ARCHITECTURES[self.architecture]
