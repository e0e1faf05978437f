"""<interface>: the guest's network cards, which passt connects to the pod's network without privileges.

https://libvirt.org/formatdomain.html#userspace-connection-using-passt; KubeVirt writes vhostuser where this writes
user, which is newer (libvirt 11.1), faster, and needs the guest's memory shared.
"""

from uuid import UUID, uuid5

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.elements.virtio import virtio_driver, virtio_model
from launcher.guest import Guest
from launcher.manifest.interfaces import Interface, Port


def interfaces(connected: tuple[Interface, ...], guest: Guest, uuid: UUID) -> list[Element]:
    """Return the network cards of the domain with this UUID."""
    return [_interface(interface, guest, uuid) for interface in connected]


def _interface(interface: Interface, guest: Guest, uuid: UUID) -> Element:
    is_virtio = interface.model == "virtio"
    element = E.interface(
        E.mac(address=interface.macAddress or _mac(interface, uuid)),
        E.model(type=virtio_model(guest) if is_virtio else interface.model),
        E.backend(type="passt"),
        *(virtio_driver(guest) if is_virtio else []),
        *_forwarded(interface.ports),
        type="user",
    )
    if interface.state == "down":
        element.append(E.link(state="down"))
    if interface.bootOrder is not None:
        element.append(E.boot(order=str(interface.bootOrder)))
    else:
        # Or the firmware tries to boot from the network when a disk does not. Under SEV, where iPXE does not work, a
        # manifest with a boot order is refused.
        element.append(E.rom(enabled="no"))
    if interface.acpiIndex:
        element.append(E.acpi(index=str(interface.acpiIndex)))
    element.append(E.alias(name=f"ua-{interface.name}"))
    return element


def _forwarded(ports: tuple[Port, ...]) -> list[Element]:
    """Return <portForward> for the ports that are listed, or for all."""
    if not ports:
        return [E.portForward(proto="tcp"), E.portForward(proto="udp")]
    return [
        E.portForward(*(E.range(start=str(port.port)) for port in listed), proto=protocol.lower())
        for protocol in ("TCP", "UDP")
        if (listed := [port for port in ports if port.protocol == protocol])
    ]


def _mac(interface: Interface, uuid: UUID) -> str:
    """Return an address that is the same at every start: cloud-init and udev know a card by it. libvirt would make one
    up."""
    octets = uuid5(uuid, f"interface/{interface.name}").bytes[:5]
    return ":".join(f"{octet:02x}" for octet in (0x02, *octets))  # 02: locally administered, and no group's
