"""The libvirt domain: the template's chassis, with elements added to it.

This is solely from values to XML; other modules decide about the VM. The template has the elements and scalars of every
VM; each optional, repeated or computed element is made by the thing that it is of, in launcher.vm.*.xml.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from uuid import UUID

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from lxml import etree
from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.vm import paths
from launcher.vm.cards import xml as cards
from launcher.vm.cards.peer_to_peer import NO_PROPERTIES, Property
from launcher.vm.consoles import xml as consoles
from launcher.vm.cpu import placement
from launcher.vm.cpu import xml as cpu
from launcher.vm.cpu.guest import Pinning
from launcher.vm.devices import Devices
from launcher.vm.disks import xml as disks
from launcher.vm.facts import Facts
from launcher.vm.features import xml as features
from launcher.vm.firmware import xml as firmware
from launcher.vm.from_spec import GuestDevices
from launcher.vm.guest import Guest
from launcher.vm.guest_pci import xml as guest_pci
from launcher.vm.guest_pci.addresses import Layout
from launcher.vm.guest_pci.bars import Hole
from launcher.vm.memory import guest as allocation
from launcher.vm.memory import xml as memory
from launcher.vm.network import xml as network
from launcher.vm.peripherals import xml as peripherals
from launcher.vm.security import xml as security
from launcher.vm.spec import Domain, Metadata, VirtualMachineInstance

_PARSER = etree.XMLParser(remove_blank_text=True)


def serialised(root: Element) -> str:
    """Return the domain as text, which ends with a newline."""
    return etree.tostring(root, pretty_print=True, encoding="unicode")


def domain_element(
    vmi: VirtualMachineInstance,
    guest: Guest,
    layout: Layout,
    devices: GuestDevices,
    facts: Facts,
    *,
    pinned: Pinning | None = None,
    hole: Hole | None = None,
    properties: Mapping[str, tuple[Property, ...]] = NO_PROPERTIES,
) -> Element:
    """Return the root element of the whole domain. `guest` and `devices` are made from `vmi`. `properties` are QEMU's,
    by the alias of the device."""
    domain, cells, uuid = vmi.spec.domain, layout.cells, vmi.uuid
    root = _chassis(domain_name(vmi.metadata), uuid, guest, facts)
    os = root.find("os")
    assert os is not None, "the template has <os>"
    firmware.boot(vmi.spec, guest, vmi.metadata.name, os, facts)
    root.extend(
        [
            *_metadata(vmi.metadata),
            *memory.memory(guest, cells, allocation.threads(guest, layout)),
            *placement.iothreads(guest.iothreads),
            *placement.placement(guest, pinned, cells),
            *(cards.iommufd(layout.seats) if vmi.metadata.annotations.by_iommufd else ()),
            firmware.sysinfo(domain, uuid),
            *firmware.ignition(vmi.metadata.annotations.ignition, facts),
            *features.features(domain.features, guest),
            cpu.cpu(domain, guest, facts, cells, hole),
            *features.clock(domain.clock),
            *_lifecycle(domain),
            E.devices(
                *guest_pci.root_complex(hole),
                *_devices(domain.devices, guest, layout, devices, uuid, facts, str(socket_directory(vmi, facts))),
            ),
            *security.launch_security(domain.launchSecurity),
            *guest_pci.command_line(guest, hole),
            *cards.override(properties),
        ]
    )
    return root


def _chassis(name: str, uuid: UUID, guest: Guest, facts: Facts) -> Element:
    text = _template().render(
        type="kvm" if facts.kvm else "qemu",
        name=name,
        uuid=uuid,
        memory=guest.memory,
        vcpus=guest.vcpus,
        arch=guest.qemu_architecture,
        machine=guest.machine,
    )
    return etree.fromstring(text, _PARSER)


def _devices(
    fields: Devices, guest: Guest, layout: Layout, devices: GuestDevices, uuid: UUID, facts: Facts, sockets: str
) -> list[Element]:
    """Return all devices except bus 0, in libvirt's order. `fields`: the manifest's. `sockets`: a directory."""
    return [
        *map(guest_pci.bridge, layout.bridges),
        *peripherals.controllers(guest, devices),
        *guest_pci.placeholders(guest, layout),
        *(disks.disk(disk, guest, has_many_queues=fields.blockMultiQueue) for disk in devices.disks),
        *disks.filesystems(fields.filesystems, guest),
        *(network.interface(card, guest, uuid) for card in devices.network_cards),
        *consoles.consoles(fields, sockets, names_agent=facts.own is not None),
        *consoles.graphics(devices.screen, sockets),
        *peripherals.peripherals(fields, devices.inputs, guest),
        *cards.hostdevs(layout.seats, devices.displays, devices.roms, devices.usb),
    ]


def domain_name(metadata: Metadata) -> str:
    """Return `namespace_name`, as KubeVirt names its domains."""
    return f"{metadata.namespace}_{metadata.name}"


def socket_directory(vmi: VirtualMachineInstance, facts: Facts) -> Path:
    """Return the directory for the sockets of the guest's console and screen: in a pod by the VM's uid or, without a
    cluster, by the domain's. A socket's path has 107 bytes at most."""
    if facts.own is not None:
        return facts.own.sockets
    return Path(paths.SOCKETS, str(vmi.metadata.uid or vmi.uuid))


@cache
def _template() -> Template:
    # autoescape=True, since select_autoescape() looks at the suffix and would leave domain.xml.j2 unescaped.
    environment = Environment(loader=PackageLoader("templates", ""), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("domain.xml.j2")


_ON_REBOOT = {"Reboot": "restart", "Terminate": "destroy"}


def _lifecycle(domain: Domain) -> list[Element]:
    """Return <on_reboot> for a rebootPolicy, without which libvirt restarts the guest, as KubeVirt does; and <on_crash>
    for a guest that panics into Hyper-V's device, which is kept for a look at its memory (KubeVirt)."""
    panics_to_hyperv = any(panic.model == "hyperv" for panic in domain.devices.panicDevices)
    return [
        *([E.on_reboot(_ON_REBOOT[domain.rebootPolicy])] if domain.rebootPolicy is not None else []),
        *([E.on_crash("preserve")] if panics_to_hyperv else []),
    ]


_KUBEVIRTS_NAMESPACE = "http://kubevirt.io"


def _metadata(metadata: Metadata) -> list[Element]:
    """Return <metadata> with the instance's uid; none if it has none, as a manifest that no API server has seen."""
    if metadata.uid is None:
        return []
    kubevirt = etree.Element(f"{{{_KUBEVIRTS_NAMESPACE}}}kubevirt", nsmap={None: _KUBEVIRTS_NAMESPACE})
    etree.SubElement(kubevirt, f"{{{_KUBEVIRTS_NAMESPACE}}}uid").text = str(metadata.uid)
    return [E.metadata(kubevirt)]
