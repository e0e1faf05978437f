"""A guest and its claims, as a libvirt domain describes them: all that a sidecar of KubeVirt's has to go on.

Nothing here reads a manifest, or imports what does.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID
from xml.etree import ElementTree

from launcher.claims import Claim, DeviceID, Entry, EntryKind, Request
from launcher.cpus.host import processors_of
from launcher.cpus.pinning import Pinning
from launcher.facts import Facts
from launcher.guest import CPUTopology, Guest
from launcher.guest_pci.addresses import Layout
from launcher.guest_pci.bars import Hole, read_bars
from launcher.guest_pci.hole import hole
from launcher.guest_pci.topology import laid_out
from launcher.hostdevs import Card, whole_cards
from pci.address import PCIAddress
from pci.resource import USBAddress
from pci.sysfs.functions import read_host

_ARCHITECTURES: Mapping[str, Any] = {"x86_64": "amd64", "aarch64": "arm64"}
_ALIAS = re.compile(r"ua-(?P<dra>dra-)?(?P<kind>gpu|hostdevice|usb-host)-(?P<name>.+)")


@dataclass(frozen=True)
class LaidOut:
    cards: tuple[Card, ...]
    layout: Layout
    hole: Hole | None


def laid_out_by(domain: str, sysfs: Path, companions: Any = "card", **annotations: Any) -> LaidOut:
    """The domain's cards from sysfs, their seats, and the hole; `annotations` are fields of Guest, which the sidecar
    has from the VM's annotations."""
    root = ElementTree.fromstring(domain)
    guest, host = replace(guest_in(root), **annotations), read_host(sysfs)
    facts = Facts(kvm=root.get("type") == "kvm", processors=processors_of(sysfs))
    cards = whole_cards(claims_in(root), (), host, companions)
    facts = replace(facts, bars=read_bars(sysfs, cards))
    layout = laid_out(guest, cards, host, facts, pinning_in(root))
    return LaidOut(cards, layout, hole(guest, layout, facts)[0])


def guest_in(root: ElementTree.Element) -> Guest:
    topology, page = root.find("cpu/topology"), root.find("memoryBacking/hugepages/page")
    machine = root.find("os/type")
    assert topology is not None
    assert machine is not None
    return Guest(
        memory=int(root.findtext("memory", "")),
        cpus=CPUTopology(*(int(topology.get(part, "1")) for part in CPUTopology._fields)),
        architecture=_ARCHITECTURES[machine.get("arch", "")],
        machine=machine.get("machine", ""),
        # KubeVirt names the image, where we let libvirt choose.
        is_efi=root.find("os/loader") is not None or root.find("os[@firmware='efi']") is not None,
        page=int(page.get("size", "")) if page is not None else None,
        is_memfd=root.find("memoryBacking/source[@type='memfd']") is not None,
        is_shared=root.find("memoryBacking/access[@mode='shared']") is not None,
        passes_numa_through=root.find("memoryBacking/allocation[@mode='immediate']") is not None,
    )


def pinning_in(root: ElementTree.Element) -> Pinning | None:
    cpus = tuple(int(pin.get("cpuset", "")) for pin in root.iterfind("cputune/vcpupin"))
    return Pinning(vcpus=cpus, emulator=(), iothreads=()) if cpus else None


def claims_in(root: ElementTree.Element) -> tuple[Claim, ...]:
    """Those of the devices that have the alias of an entry; a companion has none."""
    claims = []
    for hostdev in root.iterfind("devices/hostdev"):
        alias, address = hostdev.find("alias"), hostdev.find("source/address")
        match = None if alias is None else _ALIAS.fullmatch(alias.get("name", ""))
        if match is None or address is None:
            continue
        kind = EntryKind.GPU if match["kind"] == "gpu" else EntryKind.HOST_DEVICE
        # The domain does not say of which resource a device is, and no seat depends on it.
        wants = Request("", match["name"]) if match["dra"] else ""
        entry = Entry(kind=kind, name=match["name"], wants=wants)
        claims.append(Claim(entry=entry, device=_device(address.attrib), variable=None))
    return tuple(claims)


def _device(address: Mapping[str, str]) -> DeviceID:
    if "uuid" in address:
        return UUID(address["uuid"])
    if "slot" not in address:
        return USBAddress(int(address["bus"]), int(address["device"]))
    return PCIAddress(*(int(address[part], 16) for part in ("domain", "bus", "slot", "function")))
