"""<interface>: the guest's network cards, which passt connects to the pod's network without privileges.

https://libvirt.org/formatdomain.html#userspace-connection-using-passt; KubeVirt writes vhostuser where this writes
user, which is newer (libvirt 11.1), faster, and needs the guest's memory shared.
"""

from collections.abc import Iterable
from uuid import UUID, uuid5

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.elements.virtio import virtio_driver, virtio_model
from launcher.manifest.interfaces import Interface
from launcher.manifest.spec import Domain
from launcher.network.attachments import PROTOCOLS, Attached, Forwards, GuestAddress, Protocol


def interfaces(cards: Iterable[Attached], domain: Domain, uuid: UUID) -> list[Element]:
    """Return the network cards of the domain with this UUID."""
    return [_interface(card, domain, uuid) for card in cards]


def _interface(card: Attached, domain: Domain, uuid: UUID) -> Element:
    interface = card.interface
    is_virtio = interface.model == "virtio"
    element = E.interface(
        E.mac(address=interface.macAddress or _mac(interface, uuid)),
        E.model(type=virtio_model(domain) if is_virtio else interface.model),
        E.backend(type="passt"),
        *(virtio_driver(domain) if is_virtio else []),
        *(_ip(address) for address in card.to.addresses),
        *_forwarded(card.to.forwards),
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


def _ip(address: GuestAddress) -> Element:
    """Return the guest's address. libvirt refuses a prefix of IPv6 there, since passt has none."""
    if address.subnet.version == 6:
        return E.ip(family="ipv6", address=str(address.guest))
    return E.ip(family="ipv4", address=str(address.guest), prefix=str(address.subnet.prefixlen))


def _forwarded(forwards: Forwards) -> list[Element]:
    """Return <portForward> for the ports that are listed, or for all, which is one without a range."""
    return [
        E.portForward(*_ranges(forwards, protocol), proto=protocol.lower())
        for protocol in PROTOCOLS
        if forwards.ranges(protocol)
    ]


def _ranges(forwards: Forwards, protocol: Protocol) -> list[Element]:
    if forwards.are_all:
        return []
    return [
        E.range(start=str(start), **({"end": str(end)} if end != start else {}))
        for start, end in forwards.ranges(protocol)
    ]


def _mac(interface: Interface, uuid: UUID) -> str:
    """Return an address that is the same at every start: cloud-init and udev know a card by it. libvirt would make one
    up."""
    octets = uuid5(uuid, f"interface/{interface.name}").bytes[:5]
    return ":".join(f"{octet:02x}" for octet in (0x02, *octets))  # 02: locally administered, and no group's
