"""Facts that a domain depends on besides the manifest and the devices.

`run` finds them in its pod; `render` takes them by flags, so that the same input gives the same bytes anywhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path

from launcher.vm import paths
from pci.address import PCIAddress
from pci.host import BAR
from pci.processors import UNKNOWN, Processors
from program.errors import UserError


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """The block sizes of a block device in bytes, or of a file system, which has one size for all three. `discard` is
    None if QEMU is to choose it."""

    logical: int
    physical: int
    discard: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodInterface:
    """Multus' attachment of the pod to a network. `device`: the interface's name in the pod, empty for none.

    `has_address`: whether the pod has an IP address there. `subnet`: the address's IPv4 subnet, None if a route of the
    pod by that interface has a gateway. `is_tap`: the other end belongs to the process that opens the tap. `function`:
    the virtual function, None for an interface.
    """

    device: str
    has_address: bool = False
    subnet: IPv4Network | None = None
    is_tap: bool = False
    function: PCIAddress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMachine:
    """The place of a VM on its user's own machine, without a pod.

    `state`: the directory that stands for the pod's file system, for what is made; `run`: the root of libvirt's
    embedded driver, with all sockets. `disks`: the image or block device of each volume that has one; `ports`: the port
    of 127.0.0.1 for each of the guest's TCP ports that does not have its own number there.
    """

    state: Path
    run: Path
    disks: Mapping[str, Path] = field(default_factory=dict)
    ports: Mapping[int, int] = field(default_factory=dict)

    @property
    def sockets(self) -> Path:
        """Return the directory of the guest's console, screen and agent."""
        return self.run / "guest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """`kvm`: whether the guest runs under KVM. `cpus`: the pod's CPUs, ascending, None if unknown.

    `processors`: the host's NUMA nodes and cores, as far as known. `address_bits`: of the host's physical addresses,
    None if unknown. `bars`: the known BARs of the functions that are passed on, by their address on the host. `block`:
    the volumes whose claim is a block device, and not a file system with a file in it. `raw_images`: the containerDisks
    whose image is raw, and not qcow2; and the volumes whose image in `own.disks` is raw by its name. `no_direct_io`:
    the volumes with a file on a file system without O_DIRECT. `block_sizes`: by volume, for disks that match those of
    their volume. `pod_interfaces`: by network, what Multus has attached to the pod; None if unknown. `vfio_nodes`:
    the names below /dev/vfio that the pod has; None if unknown. `own`: None in a pod.
    """

    kvm: bool = True
    cpus: tuple[int, ...] | None = None
    processors: Processors = UNKNOWN
    address_bits: int | None = None
    bars: Mapping[PCIAddress, tuple[BAR, ...]] = field(default_factory=dict)
    block: frozenset[str] = frozenset()
    raw_images: frozenset[str] = frozenset()
    no_direct_io: frozenset[str] = frozenset()
    block_sizes: Mapping[str, BlockSizes] = field(default_factory=dict)
    pod_interfaces: Mapping[str, PodInterface] | None = None
    vfio_nodes: frozenset[str] | None = None
    own: OwnMachine | None = None

    def place(self, path: str) -> str:
        """Return the place of a file that a pod has at this path: on an own machine, below its state directory."""
        return path if self.own is None else str(paths.below(self.own.state, path))


def read_block_sizes(setting: str) -> tuple[str, BlockSizes]:
    """Read `NAME=LOGICAL/PHYSICAL/DISCARD`, or `NAME=SIZE` if they are one; UserError for anything else."""
    name, _, numbers = setting.partition("=")
    sizes = numbers.split("/")
    if not name or len(sizes) not in (1, 3) or not all(size.isascii() and size.isdigit() for size in sizes):
        raise UserError(
            f"--block-size {setting}",
            "is no volume's block sizes",
            "expected NAME=LOGICAL/PHYSICAL/DISCARD in bytes, like data=512/4096/4096",
        )
    return name, BlockSizes(*[int(size) for size in sizes] * (3 // len(sizes)))
