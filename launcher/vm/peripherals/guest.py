"""All of the guest's devices that are not told in one field of the manifest each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from launcher.vm.cards.claims import Claim
from launcher.vm.cards.guest import GuestCard
from launcher.vm.cards.roms import ROM, roms_by_alias, roms_of
from launcher.vm.consoles.guest import Screen, displays_of, screen_of
from launcher.vm.devices import Devices, Input
from launcher.vm.disks.guest import GuestDisk, guest_disks
from launcher.vm.facts import Facts
from launcher.vm.from_spec import DiskThreads, iothreads_of
from launcher.vm.guest import Architecture, Guest
from launcher.vm.guest_pci.addresses import usb, with_seats
from launcher.vm.network import guest as network
from launcher.vm.network.guest import Attached, attached
from launcher.vm.spec import Metadata, Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestInput:
    """`name` is the manifest's, None for what is there without its asking."""

    type: Literal["tablet", "keyboard"]
    bus: Literal["usb", "virtio"]
    name: str | None = None


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
    """Return the guest's devices. UserError for a disk whose volume, by the facts, is not what the disk asks for, and
    for displays that cannot be; Refusal for a network that the pod lacks, or that no guest can be connected to."""
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


def guest_inputs(devices: Devices, architecture: Architecture) -> tuple[GuestInput, ...]:
    """Return the tablets; on arm64, whose machine has no PS/2, also the tablet and keyboard that a screen needs."""
    tablets = devices.inputs
    if not tablets and devices.autoattachInputDevice:
        tablets = (Input(name="default-0"),)
    inputs = [GuestInput(type=tablet.type, bus=tablet.bus, name=tablet.name) for tablet in tablets]
    if architecture == "arm64" and devices.autoattachGraphicsDevice:
        if not tablets:
            inputs.append(GuestInput(type="tablet", bus="usb"))
        inputs.append(GuestInput(type="keyboard", bus="usb"))
    return tuple(inputs)
