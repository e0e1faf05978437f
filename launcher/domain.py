"""The libvirt domain: the template's chassis with the elements hung onto it.

Solely values to XML: what goes into the VM is decided before it gets here. The template has what every VM of ours has,
and scalars; whatever is optional, repeated or computed is an element of launcher.elements. One serialisation.
"""

from uuid import UUID, uuid5

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from lxml import etree

from launcher.addresses import Seat
from launcher.elements import cpu, firmware, memory
from launcher.elements.controller import root_port
from launcher.elements.hostdev import hostdev
from launcher.manifest import Metadata, VirtualMachineInstance

_UUIDS = UUID("b1f0bb32-6a7b-5d0e-9d4e-3f6f0a4c8b7e")


def domain_xml(vmi: VirtualMachineInstance, seats: tuple[Seat, ...], *, emulation: bool = False) -> str:
    """The whole domain, as text that ends with a newline.

    `emulation`: QEMU's own CPU (type 'qemu') where there is no KVM.
    """
    domain = vmi.spec.domain
    chassis = _template().render(
        type="qemu" if emulation else "kvm",
        name=domain_name(vmi.metadata),
        uuid=domain.firmware.uuid or _uuid(vmi.metadata),
        memory=memory.guest_memory(domain),
        vcpus=cpu.vcpus(domain),
        machine=domain.machine.type,
    )
    root = etree.fromstring(chassis, etree.XMLParser(remove_blank_text=True))
    os, features, devices = (_child(root, name) for name in ("os", "features", "devices"))
    firmware.boot(domain.firmware, os)
    for element in firmware.sysinfo(domain.firmware):
        os.addprevious(element)
    features.addnext(cpu.cpu(domain))
    devices.extend(root_port(seat) for seat in seats)
    devices.extend(hostdev(device) for seat in seats for device in seat.hostdevs)
    return etree.tostring(root, pretty_print=True, encoding="unicode")


def domain_name(metadata: Metadata) -> str:
    """`namespace_name`, as KubeVirt names its domains."""
    return f"{metadata.namespace}_{metadata.name}"


def _uuid(metadata: Metadata) -> UUID:
    """The same VM gets the same UUID at every start and on every machine; guests tie licences to it."""
    return uuid5(_UUIDS, f"{metadata.namespace}/{metadata.name}")


def _template() -> Template:
    # autoescape=True, since select_autoescape() looks at the suffix and would leave domain.xml.j2 unescaped.
    environment = Environment(loader=PackageLoader("templates", ""), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("domain.xml.j2")


def _child(root: etree._Element, name: str) -> etree._Element:
    child = root.find(name)
    assert child is not None, f"the template has <{name}>"
    return child
