"""KubeVirt's side of the hook: domains as its converter writes them, and what it keeps of an answer.

Elements, attributes and their order are those of KubeVirt's Go types (pkg/virt-launcher/virtwrap/api/schema.go), which
its converter fills (pkg/virt-launcher/virtwrap/converter) and which it reads answers and libvirt's domains into.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lxml import etree
from lxml.etree import _Element as Element

#: Attributes of an <address> that KubeVirt knows; `multifunction` is none of them.
_ADDRESS = frozenset(
    ("type", "domain", "bus", "slot", "function", "controller", "target", "unit", "uuid", "device", "cssid")
)
#: By the tag of a device's: its attributes and its children that KubeVirt knows. Devices that are not here keep all.
_KNOWN: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "hostdev": (
        frozenset(("type", "managed", "mode", "model", "display", "ramfb")),
        frozenset(("source", "boot", "address", "alias", "driver", "acpi")),
    ),
    "controller": (
        frozenset(("type", "index", "model")),
        frozenset(("driver", "alias", "address", "pcihole64", "target")),
    ),
    "video": (frozenset(), frozenset(("model",))),
}
#: What it knows of a controller's <target>: busNr and its <node> since 1.8 (PCINUMAAwareTopology), hotplug after 1.9.0;
#: before 1.8, of nothing.
_TARGET = frozenset(("busNr", "hotplug"))
#: What it reads of libvirt's domain and does not ask whether it is there, by device.
_READ_WITHOUT_ASKING: Mapping[str, tuple[str, ...]] = {
    # buildDevicesMetadata in virtwrap/manager.go: the alias of every one, since 0.59 at least, and the address of one
    # with a tag, whose four numbers lose their 0x in formatPCIAddressStr.
    "devices/hostdev": ("alias", "address"),
    # indexedDomainInterfaces in virtwrap/network/nichotplug.go; ifacesStatusFromDomainInterfaces in netstat.go.
    "devices/interface": ("alias", "mac"),
    # updateVolumeStatusesFromDomain in virt-handler/vm.go; syncDisks and disk_expansion.go of virtwrap.
    "devices/disk": ("alias", "target"),
}
_PLACEHOLDER = (
    '<interface type="ethernet"><model type="virtio-non-transitional"/><alias name="placeholder-{0}"/>'
    '<target dev="placeholder-{0}" managed="no"/></interface>'
)
#: Of the ports that it adds, none has a higher index.
_MOST_BUSES = 32
_PORT = '<controller type="pci" index="{}" model="pcie-root-port"/>'


@dataclass(frozen=True, kw_only=True)
class Card:
    """An entry, by its alias without `ua-`, and what it got: a function, or a mediated device. `at` is where KubeVirt
    itself has put it: bus and slot."""

    alias: str
    source: str
    at: tuple[int, int] | None = None
    iommufd: bool = False

    @property
    def xml(self) -> str:
        if ":" not in self.source:
            return (
                '<hostdev type="mdev" mode="subsystem" model="vfio-pci"><source>'
                f'<address uuid="{self.source}"/></source><alias name="ua-{self.alias}"/></hostdev>'
            )
        domain, bus, rest = self.source.split(":")
        slot, function = rest.split(".")
        at = "" if self.at is None else (
            f'<address type="pci" domain="0x0000" bus="{self.at[0]}" slot="0x{self.at[1]:02x}" function="0x0"/>'
        )  # fmt: skip
        return (
            f'<hostdev type="pci" managed="no"><source><address type="pci" domain="0x{domain}" bus="0x{bus}"'
            f' slot="0x{slot}" function="0x{function}"/></source>{at}<alias name="ua-{self.alias}"/>'
            + '<driver iommufd="yes"/>' * self.iommufd
            + "</hostdev>"
        )


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a domain of KubeVirt's has. `more` are further elements of <devices>, `head` of <domain>."""

    cards: tuple[Card, ...] = ()
    disks: int = 1
    nics: int = 1
    more: str = ""
    head: str = ""
    cpu: str = '<topology sockets="1" cores="4" threads="1"/>'
    vcpus: int = 4
    memory: int = 8 << 30
    efi: bool = False
    command_line: str = ""
    kind: str = "kvm"

    @property
    def is_placed_by_numa_node(self) -> bool:
        return "pcie-expander-bus" in self.more


def domain(parts: Parts) -> bytes:
    """In one line, as Go writes it."""
    disks = "".join(
        f'<disk device="disk" type="file" model="virtio-non-transitional"><source file="/data/{number}.img"/>'
        f'<target bus="virtio" dev="vd{chr(97 + number)}"/><driver cache="none" error_policy="stop" name="qemu"'
        f' type="raw" discard="unmap"/><alias name="ua-disk{number}"/></disk>'
        for number in range(parts.disks)
    )
    nics = "".join(
        f'<interface type="ethernet"><source/><target dev="tap{number}" managed="no"/>'
        f'<model type="virtio-non-transitional"/><mac address="02:00:00:00:01:{number:02x}"/><mtu size="1500"/>'
        f'<alias name="ua-net{number}"/><rom enabled="no"/></interface>'
        for number in range(parts.nics)
    )
    loader = (
        '<loader readonly="yes" secure="no" type="pflash">/usr/share/OVMF/OVMF_CODE.fd</loader>'
        "<nvram>/var/run/kubevirt-private/libvirt/qemu/nvram/vm_VARS.fd</nvram>"
    )
    video = '<video><model type="bochs" heads="1"/></video>' if parts.efi else (
        '<video><model type="vga" heads="1" vram="16384"/></video>'
    )  # fmt: skip
    root = etree.fromstring(
        f'<domain type="{parts.kind}" xmlns:qemu="http://libvirt.org/schemas/domain/qemu/1.0">'
        f'<name>lab_vm</name><memory unit="b">{parts.memory}</memory>'
        f'<os><type arch="x86_64" machine="q35">hvm</type>{loader * parts.efi}<smbios mode="sysinfo"/></os>'
        '<sysinfo type="smbios"><system><entry name="uuid">4eb3a6fe-cd5a-55b4-8db4-645d064d9b19</entry>'
        '<entry name="manufacturer">KubeVirt</entry></system><bios/><baseBoard/><chassis/></sysinfo>'
        f"<devices>{nics}"
        '<channel type="unix"><target name="org.qemu.guest_agent.0" type="virtio"/></channel>'
        f'{"".join(card.xml for card in parts.cards)}<controller type="usb" index="0" model="none"/>'
        '<controller type="scsi" index="0" model="virtio-non-transitional"/>'
        '<controller type="virtio-serial" index="0" model="virtio-non-transitional"/>'
        f'{video}<graphics type="vnc"><listen type="socket" socket="/var/run/kubevirt-private/vm/virt-vnc"/></graphics>'
        '<memballoon model="virtio-non-transitional" freePageReporting="on"><stats period="10"/></memballoon>'
        f"{disks}"
        '<serial type="unix"><target port="0"/><source mode="bind" path="/var/run/kubevirt-private/vm/virt-serial0"/>'
        '<alias name="serial0"/></serial><console type="pty"><target type="serial" port="0"/></console>'
        f"{parts.more}</devices>"
        '<metadata><kubevirt xmlns="http://kubevirt.io"><uid>3d0a4b7e-52f5-4f0e-8f4c-0d3f7a1f5c11</uid></kubevirt>'
        "</metadata><features><acpi/></features>"
        f'<cpu mode="host-model">{parts.cpu}</cpu><vcpu placement="static">{parts.vcpus}</vcpu>{parts.head}'
        f"<iothreads>1</iothreads>{parts.command_line}</domain>",
    )
    return etree.tostring(root)


def vmi(
    gpus: Mapping[str, str] | None = None,
    host_devices: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> bytes:
    """A VirtualMachineInstance as KubeVirt sends it, of entries by name with their resources."""
    devices: dict[str, Any] = {
        "gpus": [{"name": name, "deviceName": resource} for name, resource in (gpus or {}).items()],
        "hostDevices": [{"name": name, "deviceName": resource} for name, resource in (host_devices or {}).items()],
    }
    metadata = {"name": "vm", "namespace": "lab", "annotations": dict(annotations or {})}
    return json.dumps(
        {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": metadata,
         "spec": {"domain": {"devices": devices}}}
    ).encode()  # fmt: skip


def understood(answer: bytes, *, knows_targets: bool = True) -> bytes:
    """What is left of a domain in KubeVirt's types, written again."""
    root = etree.fromstring(answer)
    for address in root.iter("address"):
        _keep(address, _ADDRESS, frozenset())
    for tag, (attributes, children) in _KNOWN.items():
        for device in root.iterfind(f"devices/{tag}"):
            _keep(device, attributes, children)
    for target in root.iterfind("devices/controller/target"):
        controller = target.getparent()
        assert controller is not None
        if not knows_targets:
            controller.remove(target)
            continue
        _keep(target, _TARGET, frozenset(("node",)))
    for cell in root.iterfind("cpu/numa/cell"):
        _keep(cell, frozenset(("id", "cpus", "memory", "unit", "memAccess")), frozenset(("distances",)))
    cpu = root.find("cpu")
    if cpu is not None:
        _keep(cpu, frozenset(("mode",)), frozenset(("model", "feature", "topology", "numa")))
    return etree.tostring(root)


def _keep(element: Element, attributes: Iterable[str], children: frozenset[str]) -> None:
    for attribute in set(element.attrib) - set(attributes):
        del element.attrib[attribute]
    for child in list(element):
        if str(child.tag) not in children:
            element.remove(child)


def started(
    wanted: bytes,
    hook: Callable[[bytes], bytes],
    define: Callable[[bytes], str],
    *,
    placeholders: int = 3,
    ports: int = 3,
    knows_targets: bool = True,
) -> Iterator[tuple[bytes, str]]:
    """Every define of a start: the hook's answer, and what libvirt makes of it (allocateHotplugPorts of 1.8 and later;
    before, the last one is left out).

    With placeholders, network cards that libvirt makes ports for, KubeVirt goes on with libvirt's devices but its own
    network cards, and defines that; then it adds empty ports to what it has understood of the answer.
    """
    answer = hook(_with(wanted, [_PLACEHOLDER.format(number) for number in range(placeholders)]))
    yield answer, (theirs := define(answer))
    root, libvirts = etree.fromstring(wanted), etree.fromstring(theirs)
    devices, new = one(root, "devices"), one(libvirts, "devices")
    root.replace(devices, new)
    if placeholders:
        for tree, nics in ((new, new.findall("interface")), (devices, devices.findall("interface"))):
            for nic in nics:
                tree.remove(nic)
                if tree is devices:
                    new.append(nic)
        answer = hook(understood(etree.tostring(root), knows_targets=knows_targets))
        yield answer, define(answer)
        root = etree.fromstring(answer)
    root = etree.fromstring(understood(etree.tostring(root), knows_targets=knows_targets))
    last = max(int(each.get("index", "")) for each in root.iterfind("devices/controller[@type='pci']"))
    added = range(last + 1, min(last + 1 + ports, _MOST_BUSES))
    answer = hook(_with(etree.tostring(root), [_PORT.format(index) for index in added]))
    yield answer, define(answer)


def _with(domain: bytes, devices: Iterable[str]) -> bytes:
    root = etree.fromstring(domain)
    one(root, "devices").extend(etree.fromstring(device) for device in devices)
    return etree.tostring(root)


def one(element: Element, path: str) -> Element:
    found = element.find(path)
    assert found is not None, f"no {path} in {element.tag!r}"
    return found


def free_ports(domain: str) -> set[str]:
    """Return the indices of the root ports with nothing behind them."""
    devices = one(etree.fromstring(domain), "devices")
    taken = {int(address.get("bus", ""), 0) for address in devices.iterfind("*/address[@type='pci']")}
    ports = devices.iterfind("controller[@model='pcie-root-port']")
    return {index for port in ports if int(index := port.get("index", "")) not in taken}


def refused_beside_plugins(answer: bytes) -> list[str]:
    """What KubeVirt says of this answer where the cluster has any Plugin object: it goes through libvirtxml then
    (translate.ToLibvirtDomain), which wants every <hostdev> to have a mode."""
    hostdevs = etree.fromstring(answer).iterfind("devices/hostdev")
    return ["Missing 'mode' attribute on domain hostdev" for each in hostdevs if each.get("mode") is None]


def panics(defined: str) -> list[str]:
    """Where virt-launcher or virt-handler would follow a nil pointer in libvirt's domain, or cut a text too short."""
    root = etree.fromstring(defined)
    missing = [
        f"{path} without {part}: {etree.tostring(device, encoding='unicode')}"
        for path, parts in _READ_WITHOUT_ASKING.items()
        for device in root.iterfind(path)
        for part in parts
        if device.find(part) is None
    ]
    addresses = (
        *root.iterfind("devices/hostdev/address"),
        *root.iterfind("devices/hostdev[@type='pci']/source/address"),
    )
    short = [
        f"{part} of {dict(address.attrib)}"
        for address in addresses
        for part in ("domain", "bus", "slot", "function")
        if not address.get(part, "").startswith("0x")
    ]
    return missing + short
