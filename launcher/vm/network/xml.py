"""<interface>: the guest's network cards, which passt connects to the pod's networks without privileges, or a tap that
a CNI has made.

https://libvirt.org/formatdomain.html#userspace-connection-using-passt; KubeVirt writes vhostuser where this writes
user, which is newer (libvirt 11.1), faster, and needs the guest's memory shared.
"""

from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network
from uuid import UUID, uuid5

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.vm.guest import Guest
from launcher.vm.network.guest import GUEST, PROTOCOLS, Attached, Forwards, PasstAttachment, Protocol, Range, Tap
from launcher.vm.network.manifest import Interface
from launcher.vm.xml import virtio_driver, virtio_model


def interface(card: Attached, guest: Guest, uuid: UUID) -> Element:
    """Return a network card of the domain with this UUID."""
    wanted = card.interface
    is_virtio = wanted.model == "virtio"
    element = E.interface(
        E.mac(address=wanted.macAddress or _mac(wanted, uuid)),
        E.model(type=virtio_model(guest) if is_virtio else wanted.model),
        *([] if isinstance(card.to, Tap) else [E.backend(type="passt")]),
        *(virtio_driver(guest) if is_virtio else []),
        # A tap is there already: libvirt leaves its address and state alone.
        *([E.target(dev=card.to.device, managed="no")] if isinstance(card.to, Tap) else _passt(card.to)),
        type="ethernet" if isinstance(card.to, Tap) else "user",
    )
    if wanted.state == "down":
        element.append(E.link(state="down"))
    if wanted.bootOrder is not None:
        element.append(E.boot(order=str(wanted.bootOrder)))
    else:
        # Or the firmware tries to boot from the network when a disk does not. Under SEV, where iPXE does not work, a
        # manifest with a boot order is refused.
        element.append(E.rom(enabled="no"))
    if wanted.acpiIndex:
        element.append(E.acpi(index=str(wanted.acpiIndex)))
    element.append(E.alias(name=f"ua-{wanted.name}"))
    return element


def _passt(to: PasstAttachment) -> list[Element]:
    return [
        *([E.source(dev=to.device)] if to.device is not None else []),
        *map(_ip, to.subnets),
        *_forwarded(to.forwards),
    ]


def _ip(subnet: IPv4Network | IPv6Network) -> Element:
    """Return the guest's address without a prefix for IPv6: libvirt refuses one, since passt takes none."""
    if subnet.version == 6:
        return E.ip(family="ipv6", address=str(subnet[GUEST]))
    return E.ip(family="ipv4", address=str(subnet[GUEST]), prefix=str(subnet.prefixlen))


def _forwarded(forwards: Forwards) -> list[Element]:
    """Return <portForward> for the ports of each protocol, one without a range for all of them."""
    address = {} if forwards.own is None else {"address": "127.0.0.1"}
    return [
        E.portForward(*_ranges(forwards, protocol), proto=protocol.lower(), **address)
        for protocol in PROTOCOLS
        if forwards.ranges(protocol)
    ]


def _ranges(forwards: Forwards, protocol: Protocol) -> list[Element]:
    if forwards.are_all:
        return [_range(ports, exclude="yes") for ports in forwards.excluded(protocol)]
    own = (forwards.own or {}) if protocol == "TCP" else {}
    return [_mapped(ports, own) for ports in forwards.ranges(protocol)]


def _mapped(ports: Range, own: Mapping[int, int]) -> Element:
    start, end = ports
    if start == end and start in own:
        return _range((own[start], own[start]), to=str(start))
    return _range(ports)


def _range(ports: Range, **attributes: str) -> Element:
    start, end = ports
    return E.range(start=str(start), **({"end": str(end)} if end != start else {}), **attributes)


def _mac(interface: Interface, uuid: UUID) -> str:
    """Return the same address at every start: cloud-init and udev know a card by it, and libvirt would make one up."""
    octets = uuid5(uuid, f"interface/{interface.name}").bytes[:5]
    return ":".join(f"{octet:02x}" for octet in (0x02, *octets))  # 02: locally administered, and no group's
