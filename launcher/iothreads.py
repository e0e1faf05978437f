"""A guest's I/O threads, and which disk is served by which.

The rules are KubeVirt's (pkg/virt-launcher/virtwrap/converter/iothreads). A policy, or a disk that wants a thread of
its own, brings threads. The first of them are shared by the other disks, in turn; those after them belong to the disks
with dedicatedIOThread, one each. A supplemental pool serves every disk with all of its threads. Only virtio disks use
any, but all disks count.
"""

from collections.abc import Mapping
from itertools import count as counting

from launcher.manifest.disks import Disk
from launcher.manifest.spec import Domain, VirtualMachineInstance

_PER_CPU = 2


def count(vmi: VirtualMachineInstance) -> int:
    """How many threads the domain has, numbered from 1."""
    return supplemental(vmi.spec.domain) or _shared(vmi) + _dedicated(vmi)


def supplemental(domain: Domain) -> int:
    """The threads of the supplemental pool; 0 without that policy."""
    if domain.ioThreadsPolicy != "supplementalPool" or domain.ioThreads is None:
        return 0
    return domain.ioThreads.supplementalPoolThreadCount or 0


def assigned(vmi: VirtualMachineInstance) -> Mapping[str, tuple[int, ...]]:
    """The numbers of the threads that serve a disk, by the disk's name; a disk without any is not there.

    One is <driver iothread="1"/>. More are a pool's, <driver><iothreads>, which libvirt has since 10.0.
    """
    virtio = [disk for disk in _disks(vmi) if _bus(disk, vmi) == "virtio"]
    if pool := supplemental(vmi.spec.domain):
        return {disk.name: tuple(range(1, pool + 1)) for disk in virtio}
    if not count(vmi):
        return {}
    shared = _shared(vmi)
    own, turn = counting(shared + 1), counting()
    return {disk.name: (next(own) if disk.dedicatedIOThread else next(turn) % shared + 1,) for disk in virtio}


def of_scsi_controller(vmi: VirtualMachineInstance) -> tuple[int, ...]:
    """The threads that serve the SCSI controller and so its disks, with a policy: at most one for each vCPU.

    More than one is <driver><iothreads>, which libvirt has on a controller since 11.2.
    """
    domain = vmi.spec.domain
    if domain.ioThreadsPolicy is None or not any(_bus(disk, vmi) == "scsi" for disk in _disks(vmi)):
        return ()
    return tuple(range(1, min(count(vmi), domain.vcpus) + 1))


def _dedicated(vmi: VirtualMachineInstance) -> int:
    return sum(1 for disk in _disks(vmi) if disk.dedicatedIOThread)


def _shared(vmi: VirtualMachineInstance) -> int:
    """The threads of the disks that have none of their own."""
    dedicated, disks, limit = _dedicated(vmi), len(_disks(vmi)), _limit(vmi.spec.domain)
    if vmi.spec.domain.ioThreadsPolicy is None and not dedicated:
        return 0
    return disks - dedicated if disks <= limit else max(limit - dedicated, 1)


def _limit(domain: Domain) -> int:
    """The most threads of both kinds, though nobody's own thread is refused for it."""
    if domain.ioThreadsPolicy != "auto":
        return 1
    if domain.cpu.dedicatedCpuPlacement and domain.cpu.isolateEmulatorThread:
        return 1  # beside the emulator's, on its CPU
    cpus = domain.resources.request("cpu") or domain.resources.limit("cpu") or 1
    return cpus * _PER_CPU


def _disks(vmi: VirtualMachineInstance) -> tuple[Disk, ...]:
    return vmi.spec.disks


def _bus(disk: Disk, vmi: VirtualMachineInstance) -> str:
    return disk.bus(vmi.spec.architecture)
