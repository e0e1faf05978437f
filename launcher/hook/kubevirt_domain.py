"""What KubeVirt sends: its domain, with a guest, the cards, and those already placed; and the VMI, with what its
annotations and entries ask for.

Elements and their values are those of KubeVirt's converter (pkg/virt-launcher/virtwrap/converter), and those that
libvirt added when the domain was last defined.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any
from uuid import UUID

from lxml import etree
from lxml.etree import _Element as Element

from launcher.vm.annotations import Annotations, read_annotations
from launcher.vm.cards.claims import Claim, DeviceID, Entry, EntryKind, Request
from launcher.vm.cpu.guest import Cell, Pinning
from launcher.vm.guest import NO_MMAP, P2P, ROM_OF, SEATS_OF, TOPOLOGY, VFIO, Architecture, CPUTopology, Guest
from launcher.vm.security.confidentiality import SEV, SEV_SNP, TDX, Confidentiality
from pci.address import PCIAddress
from pci.processors import Processors, parse_cpulist
from pci.resource import USBAddress
from program.errors import Nonsense, Refusal, UserError

#: KubeVirt's annotation that puts all PCI devices on bus 0.
ON_ROOT_COMPLEX = "kubevirt.io/placePCIDevicesOnRootComplex"
_LISTS = {"gpus": EntryKind.GPU, "hostDevices": EntryKind.HOST_DEVICE}


@dataclass(frozen=True, slots=True, kw_only=True)
class VMIRequest:
    """What a VMI asks of the hook. `resources`: the resource of each entry, by list and name, in the order of the
    entries' seats; "" for an entry that DRA serves."""

    annotations: Annotations = field(default_factory=Annotations)
    resources: Mapping[tuple[EntryKind, str], str] = field(default_factory=dict)


def read_vmi(vmi: bytes) -> VMIRequest:
    """Read a VirtualMachineInstance from JSON; UserError for anything else, and for invalid annotations."""
    try:
        document = json.loads(vmi)
    except (ValueError, RecursionError) as error:
        raise UserError("the VMI", f"is no JSON: {error}", "expected the VirtualMachineInstance as JSON") from error
    written = _object(_object(document, "metadata"), "annotations")
    try:
        annotations = read_annotations(written)
    except Nonsense as error:
        raise UserError("metadata.annotations", error.wrong, error.fix) from error
    if files := sorted(name for name, rom in annotations.roms.items() if rom is not None):
        raise UserError(
            "metadata.annotations",
            f"{ROM_OF}: {files[0]!r} has a file, and KubeVirt's launcher mounts volumes in its own way",
            "expected 'off', or leave it out",
        )
    if unset := [P2P] * annotations.in_cliques + [NO_MMAP] * (not annotations.maps_bars):
        raise UserError(
            "metadata.annotations",
            f"{unset[0]} needs <qemu:override>, which KubeVirt's domain cannot have",
            "leave it out, or run the VM with gpu-launcher",
        )
    if annotations.by_iommufd:
        raise UserError(
            "metadata.annotations",
            f"{VFIO}: KubeVirt's launcher opens VFIO, and chooses by which way",
            "leave it out, or run the VM with gpu-launcher",
        )
    ours = [SEATS_OF] * bool(annotations.seats) + [TOPOLOGY] * (annotations.topology != "none")
    if ours and written.get(ON_ROOT_COMPLEX) == "true":
        raise UserError(
            "metadata.annotations",
            f"{ours[0]} and {ON_ROOT_COMPLEX} both say where cards are",
            "leave out one of them",
        )
    devices = _object(_object(_object(document, "spec"), "domain"), "devices")
    return VMIRequest(annotations=annotations, resources=dict(_entries(devices)))


def _entries(devices: Mapping[str, Any]) -> Iterable[tuple[tuple[EntryKind, str], str]]:
    for listed, kind in _LISTS.items():
        entries = devices.get(listed)
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and isinstance(name := entry.get("name"), str):
                resource = entry.get("deviceName")
                yield (kind, name), resource if isinstance(resource, str) else ""


def _object(parent: Any, field: str) -> Mapping[str, Any]:
    """Return an object that is a field of another; {} for any other value, which KubeVirt's API has refused."""
    value = parent.get(field) if isinstance(parent, dict) else None
    return value if isinstance(value, dict) else {}


_ARCHITECTURES: Mapping[str, Architecture] = {"x86_64": "amd64", "aarch64": "arm64"}
_SECURITY: Mapping[str, Confidentiality] = {"sev": SEV, "sev-snp": SEV_SNP, "tdx": TDX}
#: https://libvirt.org/formatdomain.html#memory-allocation, `unit`; KiB where it is left out.
_UNITS = {
    "b": 1, "bytes": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    **{f"{letter}{end}": 1 << shift for letter, shift in zip("kKMGT", (10, 10, 20, 30, 40), strict=True)
       for end in ("", "iB")},
}  # fmt: skip
#: KubeVirt's alias of an entry's device (pkg/virt-launcher/virtwrap/device/hostdevice). SR-IOV network cards,
#: ua-sriov-NAME, stay where they are.
_ALIAS = re.compile(r"ua-(?P<dra>dra-)?(?P<kind>gpu|hostdevice|usb-host)-(?P<name>.+)")
_PARTS = ("domain", "bus", "slot", "function")
_MOST_CPUS = 1 << 12  # of QEMU's q35; no other machine has more
_NUMBER = re.compile("[0-9]{1,18}", re.ASCII)


def parsed(domain: bytes) -> Element:
    """Parse a domain; UserError for anything but libvirt's XML."""
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False)
    try:
        root = etree.fromstring(domain, parser)
    except etree.XMLSyntaxError as error:
        raise _no_domain(f"is no XML: {error}") from error
    if root.tag != "domain" or root.getroottree().docinfo.doctype:
        raise _no_domain("is none")
    return root


def _no_domain(wrong: str) -> UserError:
    return UserError("the domain", wrong, "expected the XML of a libvirt domain, as `virsh dumpxml` prints it")


def guest_in(root: Element, request: VMIRequest) -> Guest:
    """Read the guest, with what the annotations ask for; UserError if the domain lacks an element that this needs."""
    kind = root.find("os/type")
    architecture = _ARCHITECTURES.get("" if kind is None else kind.get("arch", ""))
    if kind is None or architecture is None:
        raise _lacks("os/type with arch x86_64 or aarch64")
    page, security = root.find("memoryBacking/hugepages/page"), root.find("launchSecurity")
    annotations = request.annotations
    return Guest(
        memory=memory_in(root),
        cpus=_cpus(root),
        architecture=architecture,
        machine=kind.get("machine", ""),
        is_efi=root.find("os/loader") is not None or root.find("os[@firmware='efi']") is not None,
        confidentiality=None if security is None else _SECURITY.get(security.get("type", "")),
        page=None if page is None else _bytes(page, page.get("size", "")),
        is_memfd=root.find("memoryBacking/source[@type='memfd']") is not None,
        topology=annotations.topology,
        is_strict=annotations.is_strict,
        seats=annotations.seats,
    )


def memory_in(root: Element) -> int:
    """Return the memory in bytes, without memory that can be hotplugged."""
    memory = root.find("memory")
    if memory is None:
        raise _lacks("memory")
    return _bytes(memory, memory.text or "")


def most_memory_in(root: Element) -> int:
    """Return the memory in bytes, with memory that can be hotplugged."""
    most = root.find("maxMemory")
    return memory_in(root) if most is None else max(memory_in(root), _bytes(most, most.text or ""))


def number(text: str) -> int | None:
    """Read a number; None for any other text, and for a number larger than any in a domain."""
    return int(text) if _NUMBER.fullmatch(text) else None


def _bytes(element: Element, text: str) -> int:
    unit, size = _UNITS.get(element.get("unit") or "KiB"), number(text.strip())
    if unit is None or size is None:
        raise UserError(_tag(element), "is no size", "expected a number with a unit of libvirt's")
    return size * unit


def _cpus(root: Element) -> CPUTopology:
    topology, vcpu = root.find("cpu/topology"), root.find("vcpu")
    if topology is not None:
        cpus = CPUTopology(*(_count(topology, part, topology.get(part, "1")) for part in CPUTopology._fields))
    else:
        cpus = CPUTopology(1 if vcpu is None else _count(vcpu, "text", (vcpu.text or "1").strip()), 1, 1)
    if prod(cpus) > _MOST_CPUS:
        raise UserError("the domain", f"has {prod(cpus)} vCPUs", f"expected at most {_MOST_CPUS}")
    return cpus


def _count(element: Element, what: str, text: str) -> int:
    if not (count := number(text)):
        raise UserError(_tag(element), f"has {what}={text!r:.40}", "expected a number from 1 on")
    return count


def _tag(element: Element) -> str:
    return f"the domain's <{element.tag!s}>"


def _lacks(what: str) -> UserError:
    return UserError("the domain", f"has no {what}", "expected what every domain of KubeVirt's has")


def pinning_in(root: Element) -> Pinning | None:
    """Read the CPU of each vCPU; None if some vCPU is not pinned to one CPU."""
    pins = {pin.get("vcpu", ""): pin.get("cpuset", "") for pin in root.iterfind("cputune/vcpupin")}
    cpus = [number(pins.get(str(vcpu), "")) for vcpu in range(len(pins))]
    vcpus = tuple(cpu for cpu in cpus if cpu is not None)
    return Pinning(vcpus=vcpus, emulator=(), iothreads=()) if vcpus and len(vcpus) == len(cpus) else None


def cells_in(root: Element, processors: Processors) -> tuple[Cell, ...]:
    """Read the guest's NUMA cells, each with the host node that its memory is bound to, or that all its CPUs are on."""
    bound = {node.get("cellid"): node.get("nodeset", "") for node in root.iterfind("numatune/memnode")}
    pinned = pinning_in(root)
    node_of = {cpu: node.id for node in processors.nodes for cpu in node.cpus}
    cells = []
    for index, cell in enumerate(root.iterfind("cpu/numa/cell")):
        vcpus = _cpulist(cell.get("cpus", ""))
        node = number(bound.get(cell.get("id", str(index)), ""))
        on = {node_of.get(pinned.vcpus[vcpu]) for vcpu in vcpus if vcpu < len(pinned.vcpus)} if pinned else set()
        cells.append(
            Cell(
                vcpus=vcpus,
                memory=_bytes(cell, cell.get("memory", "")),
                node=node if node is not None else next(iter(on)) if len(on) == 1 else None,
                is_bound=node is not None,
            )
        )
    return tuple(cells)


def _cpulist(text: str) -> tuple[int, ...]:
    try:
        return parse_cpulist(text) if text else ()
    except ValueError as error:
        raise UserError("the domain's <cell>", f"has {error}", "expected CPUs like 0-3,8") from error


def named_in(root: Element, request: VMIRequest) -> Mapping[Claim, Element]:
    """Return the <hostdev> of each entry in the VM's order: all gpus, then all hostDevices. An entry that the VMI does
    not name comes last in its list.

    UserError if two entries of a list have one name, or two entries one device.
    """
    places = {key: place for place, key in enumerate(request.resources)}

    def place(named: tuple[Claim, Element]) -> tuple[bool, int]:
        entry = named[0].entry
        return entry.kind is not EntryKind.GPU, places.get((entry.kind, entry.name), len(places))

    named = sorted(_named(root, request), key=place)
    claims: dict[tuple[EntryKind, str], Claim] = {}
    first: dict[DeviceID, Entry] = {}
    for claim, _ in named:
        same = claims.setdefault((claim.entry.kind, claim.entry.name), claim)
        if same is not claim:
            raise UserError(
                claim.entry,
                f"has {same.device}, and another entry of its name has {claim.device}: KubeVirt takes the alias from "
                "the name, and libvirt takes each alias once",
                "rename one of them",
            )
        if (earlier := first.setdefault(claim.device, claim.entry)) is not claim.entry:
            raise UserError(
                claim.entry,
                f"is {claim.device}, and so is {earlier}: KubeVirt takes from one variable for gpus, and again "
                "for hostDevices",
                "expected a resource in one of the two lists alone",
            )
    return dict(named)


def _named(root: Element, request: VMIRequest) -> Iterator[tuple[Claim, Element]]:
    for element in root.iterfind("devices/hostdev"):
        match = _ALIAS.fullmatch(alias_of(element))
        if match is None:
            continue
        kind = EntryKind.GPU if match["kind"] == "gpu" else EntryKind.HOST_DEVICE
        wants = Request("", match["name"]) if match["dra"] else request.resources.get((kind, match["name"]), "")
        entry = Entry(kind=kind, name=match["name"], wants=wants)
        address = element.find("source/address")
        device = None if address is None else _device_at(address)
        if device is None:
            raise Refusal(entry, "has a source that is no PCI, mediated or USB device's", "expected one of KubeVirt's")
        yield Claim(entry=entry, device=device, variable=None), element


def alias_of(element: Element) -> str:
    alias = element.find("alias")
    return "" if alias is None else alias.get("name", "")


def _device_at(address: Element) -> DeviceID | None:
    try:
        if (uuid := address.get("uuid")) is not None:
            return UUID(uuid)
        if address.get("slot") is None:
            return USBAddress(int(address.get("bus", "")), int(address.get("device", "")))
        return pci_of(address)
    except ValueError:
        return None


def pci_of(address: Element) -> PCIAddress:
    """Read an <address>, which KubeVirt also writes in decimal; ValueError if a part is no number."""
    texts = [address.get(part) or "0" for part in _PARTS]
    return PCIAddress(*(int(text, 16 if text.startswith("0x") else 10) for text in texts))


def source_of(hostdev: Element) -> PCIAddress | None:
    """Return the host's PCI function that is passed on; None for a device of another kind."""
    address = hostdev.find("source/address")
    if hostdev.get("type") != "pci" or address is None:
        return None
    device = _device_at(address)
    return device if isinstance(device, PCIAddress) else None


def guest_address_of(device: Element) -> PCIAddress | None:
    """Return a device's address in the guest, with libvirt's bus number; None if libvirt is to choose it."""
    address = device.find("address")
    if address is None or address.get("type") != "pci" or address.get("slot") is None:
        return None
    try:
        return pci_of(address)
    except ValueError:
        return None
