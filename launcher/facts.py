"""What a domain depends on that neither the manifest nor the devices say.

In a pod it is looked up there; `render` takes it by flags, so that the same input gives the same bytes anywhere.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NUMANode:
    """A NUMA node of the host's. `cpus` ascending; `distances` to each node, as (node, distance), itself included."""

    id: int
    cpus: tuple[int, ...]
    distances: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """`kvm`: whether the guest runs under KVM. `cpus`: the pod's CPUs, ascending, None where they are not known.

    `nodes` and `cores` are the host's NUMA nodes and its physical cores, each core as the CPUs that are its threads.
    `block`: the names of the volumes whose claim is a block device, and not a file system with a file in it.
    """

    kvm: bool = True
    cpus: tuple[int, ...] | None = None
    nodes: tuple[NUMANode, ...] = ()
    cores: tuple[tuple[int, ...], ...] = ()
    block: frozenset[str] = frozenset()
