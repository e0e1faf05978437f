"""The guest that a manifest describes, and those of its devices that depend on more than one field of the manifest."""

from collections.abc import Mapping
from dataclasses import dataclass

from launcher.vm.cards.claims import Claim
from launcher.vm.cards.guest import GuestCard
from launcher.vm.cards.roms import ROM, roms_by_alias, roms_of
from launcher.vm.consoles.guest import Screen, displays_of, screen_of
from launcher.vm.disks.guest import DiskThreads, GuestDisk, guest_disks, iothreads_of
from launcher.vm.facts import Facts
from launcher.vm.guest import CPUTopology, Guest
from launcher.vm.guest_pci.addresses import usb, with_seats
from launcher.vm.network import guest as network
from launcher.vm.network.guest import Attached, attached
from launcher.vm.peripherals.guest import GuestInput, guest_inputs
from launcher.vm.spec import Domain, Metadata, Spec, VirtualMachineInstance

_MACHINES = {"amd64": "q35", "arm64": "virt"}


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
class GuestDevices:
    """`displays`: the cards that are displays, by alias, and whether each has ramfb. `roms`: option ROMs by alias, None
    for no ROM. `usb`: the host's USB devices. `has_usb`: whether anything is on USB and needs a controller."""

    disks: tuple[GuestDisk, ...]
    iothreads: DiskThreads
    inputs: tuple[GuestInput, ...]
    screen: Screen | None
    displays: Mapping[str, bool]
    roms: Mapping[str, ROM | None]
    network_cards: tuple[Attached, ...]
    usb: tuple[Claim, ...]
    has_usb: bool


def guest_devices(
    spec: Spec, metadata: Metadata, guest: Guest, cards: tuple[GuestCard, ...], facts: Facts
) -> GuestDevices:
    """Return the guest's devices. UserError for a disk that asks for something that its volume, by the facts, cannot
    be, and for impossible displays; Refusal for a network that the pod lacks, or that no guest can be connected to."""
    devices, threads = spec.domain.devices, iothreads_of(spec)
    disks = tuple(guest_disks(spec, metadata, threads, facts))
    inputs = guest_inputs(devices, guest.architecture)
    usb_claims = usb(cards)
    buses = {*(disk.bus for disk in disks), *(device.bus for device in inputs)}
    return GuestDevices(
        disks=disks,
        iothreads=threads,
        inputs=inputs,
        screen=screen_of(devices, guest),
        displays=displays_of(devices, dict.fromkeys(card.claim for card in with_seats(cards))),
        roms=roms_by_alias(cards, roms_of(spec, metadata)),
        network_cards=attached(
            spec,
            facts.pod_interfaces,
            facts.own.ports if facts.own is not None else None,
            network.PORTS if network.is_injected(metadata) else (),
        ),
        usb=usb_claims,
        # On arm64 always, as for KubeVirt.
        has_usb=guest.architecture == "arm64" or bool(usb_claims) or "usb" in buses,
    )
