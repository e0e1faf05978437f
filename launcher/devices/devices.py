"""All of the guest's devices that are not told in one field of the manifest each."""

from collections.abc import Mapping
from dataclasses import dataclass

from launcher.claims import Claim
from launcher.devices.disks import GuestDisk, guest_disks
from launcher.devices.displays import GuestDisplay, Screen, displays_of, screen_of
from launcher.devices.inputs import GuestInput, guest_inputs
from launcher.devices.roms import ROM, roms_by_alias, roms_of
from launcher.facts import Facts
from launcher.guest import Guest
from launcher.guest_pci.addresses import usb, with_seats
from launcher.hostdevs import GuestCard
from launcher.manifest.iothreads import IOThreads, iothreads_of
from launcher.manifest.spec import Metadata, Spec
from launcher.network.attachments import Attached, attached


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestDevices:
    """`displays` has the cards that are displays, by alias; `roms` their option ROMs, by alias, None for none at all;
    `usb` are the host's USB devices. `has_usb`: whether anything is on USB, so that there is a controller."""

    disks: tuple[GuestDisk, ...]
    iothreads: IOThreads
    inputs: tuple[GuestInput, ...]
    screen: Screen | None
    displays: Mapping[str, GuestDisplay]
    roms: Mapping[str, ROM | None]
    network_cards: tuple[Attached, ...]
    usb: tuple[Claim, ...]
    has_usb: bool


def guest_devices(
    spec: Spec, metadata: Metadata, guest: Guest, cards: tuple[GuestCard, ...], facts: Facts
) -> GuestDevices:
    """UserError for a disk whose volume, by the facts, is not what it asks for, and for displays that cannot be.

    Refusal for a network that the pod does not have, or not as a guest could be joined to it.
    """
    devices, threads = spec.domain.devices, iothreads_of(spec)
    disks = tuple(guest_disks(spec, metadata, threads, facts))
    inputs = guest_inputs(devices, guest.architecture)
    usb_claims = usb(cards)
    return GuestDevices(
        disks=disks,
        iothreads=threads,
        inputs=inputs,
        screen=screen_of(devices, guest),
        displays=displays_of(devices, dict.fromkeys(card.claim for card in with_seats(cards))),
        roms=roms_by_alias(cards, roms_of(spec, metadata)),
        network_cards=attached(spec, facts.pod_interfaces),
        usb=usb_claims,
        has_usb=_has_usb(guest, usb_claims, disks, inputs),
    )


def _has_usb(
    guest: Guest, usb: tuple[Claim, ...], disks: tuple[GuestDisk, ...], inputs: tuple[GuestInput, ...]
) -> bool:
    """On arm64 always, as KubeVirt has it."""
    on_usb = (*(disk for disk in disks if disk.bus == "usb"), *(device for device in inputs if device.bus == "usb"))
    return guest.architecture == "arm64" or bool(usb or on_usb)
