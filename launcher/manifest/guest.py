"""The guest that a manifest describes."""

from launcher.guest import CPUTopology, Guest
from launcher.manifest.iothreads import iothreads_of
from launcher.manifest.spec import Domain, VirtualMachineInstance

_MACHINES = {"amd64": "q35", "arm64": "virt"}


def guest_of(vmi: VirtualMachineInstance) -> Guest:
    """UserError where the manifest gives the guest no memory."""
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
    """One; with KubeVirt's annotation another one where that makes the pod's CPUs even, as whole cores are."""
    if not domain.cpu.isolateEmulatorThread:
        return 0
    return 2 if can_be_two and others % 2 == 0 else 1
