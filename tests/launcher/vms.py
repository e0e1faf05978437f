"""Manifests for tests: a small VMI as YAML text, and its parts."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from launcher.manifest.parser import read_vm
from launcher.vm.cards import claims
from launcher.vm.cards.claims import Allocated, Claim, DeviceID, Entry, EntryKind, LeftOver
from launcher.vm.cards.guest import GuestCard, whole_cards
from launcher.vm.cpu.guest import pinning
from launcher.vm.domain import domain_element, serialised
from launcher.vm.facts import Facts
from launcher.vm.from_spec import guest_devices, guest_of
from launcher.vm.guest import CPUTopology, Guest
from launcher.vm.guest_pci.addresses import Layout, layout
from launcher.vm.guest_pci.bars import hole
from launcher.vm.spec import VirtualMachineInstance
from pci.host import Host

#: Its libvirt, 9.0.0, is built without passt; `libvirt.getVersion()` of later ones is greater.
DEBIAN_12 = 9_000_000

RTX_2060 = "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A"
RTX_2060_VARIABLE = "PCI_RESOURCE_NVIDIA_COM_TU106_GEFORCE_RTX_2060_REV__A"
RTX_3090 = "nvidia.com/GA102_GEFORCE_RTX_3090"
RTX_3090_VARIABLE = "PCI_RESOURCE_NVIDIA_COM_GA102_GEFORCE_RTX_3090"
_NO_SEATS, _NO_FACTS = Layout(), Facts()


def without_lines(text: str, file: Path) -> str:
    """The text of an error with the file's name alone where its line is, too."""
    return re.sub(rf"({re.escape(str(file))})(:\d+)+: ", r"\1: ", text)


def vmi_text(*, domain: str = "", gpus: Iterable[tuple[str, str]] = (), name: str = "vm") -> str:
    """A VirtualMachineInstance with these gpus, and `domain` as further lines below spec.domain.

    Without a network: Debian 12's libvirt is built without passt.
    """
    entries = "".join(f"\n      - {{name: {gpu}, deviceName: {resource}}}" for gpu, resource in gpus)
    return (
        "apiVersion: kubevirt.io/v1\n"
        "kind: VirtualMachineInstance\n"
        f"metadata: {{name: {name}}}\n"
        "spec:\n"
        "  domain:\n"
        "    memory: {guest: 1Gi}\n"
        f"    devices:\n      gpus:{entries or ' []'}\n      autoattachPodInterface: false\n"
        f"{domain}"
    )


def write_vmi(path: Path, **parts: object) -> Path:
    path.write_text(vmi_text(**parts))  # type: ignore[arg-type]
    return path


def read_manifest(path: Path) -> VirtualMachineInstance:
    """A VirtualMachineInstance, or a VirtualMachine as the instance that it would make."""
    return read_vm(path).instance


def entries(*, gpus: Iterable[tuple[str, str]] = (), host_devices: Iterable[tuple[str, str]] = ()) -> tuple[Entry, ...]:
    """gpus and hostDevices, each with its name and its resource."""
    return (
        *(Entry(kind=EntryKind.GPU, name=name, wants=resource) for name, resource in gpus),
        *(Entry(kind=EntryKind.HOST_DEVICE, name=name, wants=resource) for name, resource in host_devices),
    )


def a_guest(**parts: Any) -> Guest:
    """One of 1 GiB and one vCPU."""
    return Guest(**{"memory": 1 << 30, "cpus": CPUTopology(1, 1, 1), **parts})


def domain_of(
    vmi: VirtualMachineInstance, layout: Layout = _NO_SEATS, facts: Facts = _NO_FACTS, cards: tuple[GuestCard, ...] = ()
) -> str:
    """The domain's text, with these seats."""
    guest = guest_of(vmi)
    devices = guest_devices(vmi.spec, vmi.metadata, guest, cards, facts)
    wanted, _ = hole(guest, layout, facts)
    return serialised(domain_element(vmi, guest, layout, devices, facts, pinned=pinning(guest, facts), hole=wanted))


def claim(
    wanted: tuple[Entry, ...],
    environ: Mapping[str, str],
    host: Host | None,
    allocated: Mapping[Allocated, DeviceID] | None = None,
) -> tuple[tuple[Claim, ...], tuple[LeftOver, ...]]:
    """A claim for each entry, and what is left over; the first error, where an entry can have none."""
    claimed = claims.claim(wanted, environ, host, allocated or {})
    for error in claimed.unmet.values():
        raise error
    return claimed.claims, claimed.left_over


def cards_of(vmi: VirtualMachineInstance, environ: Mapping[str, str], host: Host | None) -> tuple[GuestCard, ...]:
    return whole_cards(*claim(vmi.spec.domain.devices.entries, environ, host), host)


def laid_out(wanted: tuple[Entry, ...], environ: Mapping[str, str], host: Host | None = None) -> Layout:
    """All stages from the entries to their seats."""
    return layout(whole_cards(*claim(wanted, environ, host), host))
