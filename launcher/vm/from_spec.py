"""The guest that a manifest describes, and its I/O threads."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count as counting

from launcher.vm.disks.manifest import Disk
from launcher.vm.guest import CPUTopology, Guest
from launcher.vm.spec import Domain, Spec, VirtualMachineInstance

_MACHINES = {"amd64": "q35", "arm64": "virt"}
_THREADS_PER_CPU = 2


def guest_of(vmi: VirtualMachineInstance) -> Guest:
    """Return the guest; UserError if the manifest gives it no memory."""
    spec, domain, annotations = vmi.spec, vmi.spec.domain, vmi.metadata.annotations
    hugepages, cpu, efi = domain.memory.hugepages, domain.cpu, spec.efi
    threads = iothreads_of(spec)
    # A guest whose memory or CPUs are its own tells of no free pages (KubeVirt, IsHighPerformanceVMI).
    is_high_performance = cpu.dedicatedCpuPlacement or cpu.realtime is not None or hugepages is not None
    return Guest(
        architecture=spec.architecture,
        machine=domain.machine.type or _MACHINES[spec.architecture],
        is_efi=efi is not None,
        has_secure_boot=efi is not None and efi.secureBoot,
        confidentiality=domain.launchSecurity.technology if domain.launchSecurity is not None else None,
        memory=domain.guest_memory,
        page=hugepages.pageSize if hugepages is not None else None,
        # For KubeVirt also with passt, which here is none that speaks vhost-user.
        is_memfd=annotations.memfd if hugepages is not None else bool(domain.devices.filesystems),
        is_shared=bool(domain.devices.filesystems),
        cpus=CPUTopology(*domain.topology),
        has_own_cpus=cpu.dedicatedCpuPlacement,
        emulator_cpus=_emulator_cpus(domain, domain.vcpus + threads.pool, can_be_two=annotations.even_emulator),
        iothreads=threads.count,
        iothread_pool=threads.pool,
        realtime=cpu.realtime.vcpus(domain.vcpus) if cpu.realtime is not None else (),
        passes_numa_through=cpu.passes_numa_through,
        topology=annotations.topology,
        is_strict=annotations.is_strict,
        seats=annotations.seats,
        allows_emulation=annotations.allow_emulation,
        reports_free_pages=annotations.free_page_reporting and not is_high_performance,
        has_transitional_virtio=domain.devices.useVirtioTransitional,
    )


def _emulator_cpus(domain: Domain, others: int, *, can_be_two: bool) -> int:
    """Return how many CPUs are the emulator's: 2 by KubeVirt's annotation, if that makes the pod's CPUs whole cores."""
    if not domain.cpu.isolateEmulatorThread:
        return 0
    return 2 if can_be_two and others % 2 == 0 else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskThreads:
    """`count` threads, numbered from 1; `pool` of them are a supplemental pool, all or none.

    `of_disks`: the threads of each disk that has any, by its name. One is <driver iothread="1"/>; more are a pool's,
    <driver><iothreads>, which libvirt has since 10.0. `of_scsi_controller`: the threads of the controller and so of its
    disks, with a policy, at most one for each vCPU; libvirt has more than one of them since 11.2.
    """

    count: int
    pool: int
    of_disks: Mapping[str, tuple[int, ...]]
    of_scsi_controller: tuple[int, ...]


def iothreads_of(spec: Spec) -> DiskThreads:
    """Return a guest's I/O threads, and which disks they serve.

    The rules are KubeVirt's (pkg/virt-launcher/virtwrap/converter/iothreads). A policy, or a disk that wants a thread
    of its own, brings threads. The first threads are shared by the other disks, in turn; those after them belong to the
    disks with dedicatedIOThread, one each. A supplemental pool serves every disk with all of its threads. Only virtio
    disks use any, but all disks count.
    """
    domain, disks = spec.domain, spec.disks
    dedicated = sum(disk.dedicatedIOThread for disk in disks)
    pool = (domain.ioThreads.supplementalPoolThreadCount or 0) if domain.ioThreads is not None else 0
    shared = _shared(domain, len(disks), dedicated)
    count = pool or shared + dedicated
    buses = [disk.bus(spec.architecture) for disk in disks]
    virtio = [disk for disk, bus in zip(disks, buses, strict=True) if bus == "virtio"]
    in_pool = {disk.name: tuple(range(1, pool + 1)) for disk in virtio}
    serves_scsi = domain.ioThreadsPolicy is not None and "scsi" in buses
    return DiskThreads(
        count=count,
        pool=pool,
        of_disks=in_pool if pool else _turns(virtio, shared) if count else {},
        of_scsi_controller=tuple(range(1, min(count, domain.vcpus) + 1)) if serves_scsi else (),
    )


def _turns(disks: list[Disk], shared: int) -> Mapping[str, tuple[int, ...]]:
    own, turn = counting(shared + 1), counting()
    return {disk.name: (next(own) if disk.dedicatedIOThread else next(turn) % shared + 1,) for disk in disks}


def _shared(domain: Domain, disks: int, dedicated: int) -> int:
    """Return how many threads serve the disks without a thread of their own."""
    if domain.ioThreadsPolicy is None and not dedicated:
        return 0
    limit = _limit(domain)
    return disks - dedicated if disks <= limit else max(limit - dedicated, 1)


def _limit(domain: Domain) -> int:
    """Return the most threads in all. A disk's own thread may exceed it."""
    if domain.ioThreadsPolicy != "auto":
        return 1
    if domain.cpu.dedicatedCpuPlacement and domain.cpu.isolateEmulatorThread:
        return 1  # beside the emulator's, on its CPU
    cpus = domain.resources.request("cpu") or domain.resources.limit("cpu") or 1
    return cpus * _THREADS_PER_CPU
