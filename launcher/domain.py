"""The libvirt domain: the template's chassis with the elements hung onto it.

Solely values to XML: what goes into the VM is decided before it gets here. The template has what every VM of ours has,
and scalars; whatever is optional, repeated or computed is an element of launcher.elements. One serialisation.
"""

from functools import cache
from pathlib import Path
from uuid import UUID, uuid5

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from lxml import etree
from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.claims import Claim
from launcher.cpus.pinning import Pinning
from launcher.elements import (
    clock,
    commandline,
    consoles,
    controllers,
    cpu,
    disks,
    features,
    firmware,
    graphics,
    hostdev,
    interfaces,
    iothreads,
    lifecycle,
    memory,
    metadata,
    peripherals,
    placement,
    security,
)
from launcher.facts import Facts
from launcher.guest_pci.addresses import Layout
from launcher.guest_pci.bars import Hole
from launcher.manifest.spec import Metadata, VirtualMachineInstance
from launcher.network.attachments import attached

_PARSER = etree.XMLParser(remove_blank_text=True)
_UUIDS = UUID("b1f0bb32-6a7b-5d0e-9d4e-3f6f0a4c8b7e")


def serialised(root: Element) -> str:
    """The domain as text, which ends with a newline."""
    return etree.tostring(root, pretty_print=True, encoding="unicode")


def domain_element(
    vmi: VirtualMachineInstance,
    layout: Layout,
    facts: Facts,
    *,
    pinned: Pinning | None = None,
    hole: Hole | None = None,
    usb: tuple[Claim, ...] = (),
) -> Element:
    """The whole domain, as its root element. `usb` are the claims that have no seat."""
    domain = vmi.spec.domain
    uuid = domain_uuid(vmi)
    sockets = str(socket_directory(vmi))
    chassis = _template().render(
        type="kvm" if facts.kvm else "qemu",
        name=domain_name(vmi.metadata),
        uuid=uuid,
        memory=domain.guest_memory,
        vcpus=domain.vcpus,
        arch=firmware.ARCHITECTURES[vmi.spec.architecture],
        machine=firmware.machine(vmi.spec),
    )
    root = etree.fromstring(chassis, _PARSER)
    os = root.find("os")
    assert os is not None, "the template has <os>"
    firmware.boot(vmi, os)
    root.extend(
        [
            *metadata.metadata(vmi.metadata),
            *memory.memory(vmi, layout.cells),
            *iothreads.iothreads(vmi),
            *placement.placement(vmi, pinned, layout.cells),
            firmware.sysinfo(domain, uuid),
            *features.features(vmi),
            cpu.cpu(vmi, facts, layout.cells, hole),
            *clock.clock(domain),
            *lifecycle.lifecycle(domain),
            *lifecycle.on_crash(domain),
            E.devices(
                *controllers.root_complex(hole),
                *map(controllers.bridge, layout.bridges),
                *controllers.controllers(vmi, usb=bool(usb)),
                *controllers.placeholders(domain, layout),
                *disks.disks(vmi, facts),
                *interfaces.interfaces(attached(vmi.spec), domain, uuid),
                *consoles.consoles(domain.devices, sockets),
                *graphics.graphics(vmi.spec, sockets),
                *peripherals.peripherals(vmi),
                *hostdev.hostdevs(domain.devices, layout.seats, usb),
            ),
            *security.launch_security(domain),
            *commandline.command_line(vmi.spec, hole),
        ]
    )
    return root


def domain_name(metadata: Metadata) -> str:
    """`namespace_name`, as KubeVirt names its domains."""
    return f"{metadata.namespace}_{metadata.name}"


def domain_uuid(vmi: VirtualMachineInstance) -> UUID:
    """The same VM gets the same UUID at every start and on every machine; guests tie licences to it."""
    metadata = vmi.metadata
    return vmi.spec.domain.firmware.uuid or uuid5(_UUIDS, f"{metadata.namespace}/{metadata.name}")


def socket_directory(vmi: VirtualMachineInstance) -> Path:
    """Where the sockets of the guest's console and screen are: KubeVirt's directory for what is a VM's alone.

    By the VM's uid or, where no cluster has given it one, by the domain's. A socket's path has 107 bytes at most.
    """
    return Path("/var/run/kubevirt-private", str(vmi.metadata.uid or domain_uuid(vmi)))


@cache
def _template() -> Template:
    # autoescape=True, since select_autoescape() looks at the suffix and would leave domain.xml.j2 unescaped.
    environment = Environment(loader=PackageLoader("templates", ""), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("domain.xml.j2")
