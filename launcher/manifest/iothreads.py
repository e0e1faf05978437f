"""A guest's I/O threads, and which disk is served by which.

The rules are KubeVirt's (pkg/virt-launcher/virtwrap/converter/iothreads). A policy, or a disk that wants a thread of
its own, brings threads. The first of them are shared by the other disks, in turn; those after them belong to the disks
with dedicatedIOThread, one each. A supplemental pool serves every disk with all of its threads. Only virtio disks use
any, but all disks count.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count as counting

from launcher.manifest.disks import Disk
from launcher.manifest.spec import Domain, Spec

_PER_CPU = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class IOThreads:
    """`count` threads, numbered from 1; `pool` of them are a supplemental pool, all or none.

    `of_disks`: the threads that serve a disk, by the disk's name; a disk without any is not there. One is
    <driver iothread="1"/>. More are a pool's, <driver><iothreads>, which libvirt has since 10.0.
    `of_scsi_controller`: the threads of the controller and so of its disks, with a policy, at most one for each vCPU.
    More than one is <driver><iothreads>, which libvirt has on a controller since 11.2.
    """

    count: int
    pool: int
    of_disks: Mapping[str, tuple[int, ...]]
    of_scsi_controller: tuple[int, ...]


def iothreads_of(spec: Spec) -> IOThreads:
    domain, disks = spec.domain, spec.disks
    dedicated = sum(disk.dedicatedIOThread for disk in disks)
    pool = (domain.ioThreads.supplementalPoolThreadCount or 0) if domain.ioThreads is not None else 0
    shared = _shared(domain, len(disks), dedicated)
    count = pool or shared + dedicated
    buses = [disk.bus(spec.architecture) for disk in disks]
    virtio = [disk for disk, bus in zip(disks, buses, strict=True) if bus == "virtio"]
    in_pool = {disk.name: tuple(range(1, pool + 1)) for disk in virtio}
    serves_scsi = domain.ioThreadsPolicy is not None and "scsi" in buses
    return IOThreads(
        count=count,
        pool=pool,
        of_disks=in_pool if pool else _turns(virtio, shared) if count else {},
        of_scsi_controller=tuple(range(1, min(count, domain.vcpus) + 1)) if serves_scsi else (),
    )


def _turns(disks: list[Disk], shared: int) -> Mapping[str, tuple[int, ...]]:
    own, turn = counting(shared + 1), counting()
    return {disk.name: (next(own) if disk.dedicatedIOThread else next(turn) % shared + 1,) for disk in disks}


def _shared(domain: Domain, disks: int, dedicated: int) -> int:
    """The threads of the disks that have none of their own."""
    if domain.ioThreadsPolicy is None and not dedicated:
        return 0
    limit = _limit(domain)
    return disks - dedicated if disks <= limit else max(limit - dedicated, 1)


def _limit(domain: Domain) -> int:
    """The most threads of both kinds, though nobody's own thread is refused for it."""
    if domain.ioThreadsPolicy != "auto":
        return 1
    if domain.cpu.dedicatedCpuPlacement and domain.cpu.isolateEmulatorThread:
        return 1  # beside the emulator's, on its CPU
    cpus = domain.resources.request("cpu") or domain.resources.limit("cpu") or 1
    return cpus * _PER_CPU
