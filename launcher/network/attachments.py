"""What each of the guest's network cards is attached to, and which ports of the pod reach it there.

passt stands between the guest and the pod's network, as a process of the launcher's user:
https://passt.top/passt/about/. KubeVirt makes a bridge, a tap and rules as root instead (pkg/network); what the guest
sees of both is compared in docs/network.md. passt listens on all addresses of the pod, so that a port reaches the guest
at one of its cards, the first that has it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Literal, NamedTuple

from launcher.facts import PodInterface
from launcher.manifest.interfaces import Interface, PodNetwork
from launcher.manifest.spec import Spec
from launcher.network.multus import SecondNetwork, second_networks
from program.errors import Refusal

Protocol = Literal["TCP", "UDP"]
PROTOCOLS: tuple[Protocol, ...] = ("TCP", "UDP")
#: From the first port to the last, which may be the same.
Range = tuple[int, int]
_ALL = (0, 65535)


@dataclass(frozen=True, slots=True)
class GuestAddress:
    """The address that a masqueraded guest has in `subnet`, and its gateway's: the second, and the first (KubeVirt's
    pkg/network/setup/netpod/masquerade)."""

    subnet: IPv4Network | IPv6Network

    @property
    def guest(self) -> IPv4Address | IPv6Address:
        return self.subnet[2]

    @property
    def gateway(self) -> IPv4Address | IPv6Address:
        return self.subnet[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwards:
    """The ports of the pod that reach the guest, of each protocol in their order; None for all of both. Not those that
    are `elsewhere`: they reach it at an earlier card."""

    listed: Mapping[Protocol, tuple[Range, ...]] | None
    elsewhere: Mapping[Protocol, tuple[Range, ...]] = field(default_factory=dict)

    @property
    def are_all(self) -> bool:
        return self.listed is None

    def ranges(self, protocol: Protocol) -> tuple[Range, ...]:
        """Return them without what is elsewhere."""
        ranges = (_ALL,) if self.listed is None else self.listed.get(protocol, ())
        for taken in self.elsewhere.get(protocol, ()):
            ranges = tuple(left for ports in ranges for left in _without(ports, taken))
        return ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class PasstAttachment:
    """passt, on the pod's network, or by the pod's interface `device`. `addresses` are a masqueraded guest's, of IPv4
    and of IPv6; without any the guest has the pod's own, and `gateway` is what the guest is told where the pod has
    none there."""

    addresses: tuple[GuestAddress, ...] = ()
    device: str | None = None
    gateway: IPv4Address | None = None
    forwards: Forwards


@dataclass(frozen=True, slots=True, kw_only=True)
class Tap:
    """A tap that a CNI has made in the pod: the guest's frames are on its network as they are."""

    device: str


class Attached(NamedTuple):
    """A network card, and what it is attached to."""

    interface: Interface
    to: PasstAttachment | Tap


def attached(spec: Spec, pod_interfaces: Mapping[str, PodInterface] | None = None) -> tuple[Attached, ...]:
    """Return the emulated network cards that the guest has, in their order; virtual functions are passed on.

    `pod_interfaces` is what Multus has attached to the pod, by network; where that is not known, interfaces with an
    address. Refusal where the pod lacks one, or it can be joined to a guest by nobody without privileges.
    """
    networks = {network.name: network for network in spec.networks}
    second = {network.name: network for network in second_networks(spec)}
    taken: dict[Protocol, tuple[Range, ...]] = {}
    cards = []
    for interface in spec.domain.devices.connected:
        if interface.method == "sriov":
            continue
        forwards = _forwards(interface, dict(taken))
        if interface.name in second:
            to = _to_second(second[interface.name], forwards, pod_interfaces)
        else:
            network = networks.get(interface.name)
            to = _to_pods(interface, network.pod if network is not None else None, forwards)
        if isinstance(to, PasstAttachment):
            taken = {protocol: (*taken.get(protocol, ()), *forwards.ranges(protocol)) for protocol in PROTOCOLS}
        cards.append(Attached(interface, to))
    return tuple(cards)


def _to_pods(interface: Interface, pod: PodNetwork | None, forwards: Forwards) -> PasstAttachment:
    pod = pod or PodNetwork()
    masqueraded = interface.method == "masquerade"
    addresses = (GuestAddress(pod.vmNetworkCIDR), GuestAddress(pod.vmIPv6NetworkCIDR)) if masqueraded else ()
    return PasstAttachment(addresses=addresses, forwards=forwards)


def _to_second(
    network: SecondNetwork, forwards: Forwards, pod_interfaces: Mapping[str, PodInterface] | None
) -> PasstAttachment | Tap:
    if pod_interfaces is None:
        return PasstAttachment(device=network.device, forwards=forwards)
    subject = f"network {network.name!r}"
    interface = pod_interfaces.get(network.name)
    if interface is None:
        raise Refusal(
            subject,
            f"the pod has no interface {network.device}, which Multus makes of {network.definition}",
            "install Multus, see that the NetworkAttachmentDefinition is there, and read the pod's events",
        )
    if interface.is_tap and network.interface.method == "bridge":
        return Tap(device=interface.device)
    if interface.has_address:
        gateway = interface.subnet[1] if interface.subnet is not None and interface.subnet.prefixlen < 31 else None
        return PasstAttachment(device=interface.device, gateway=gateway, forwards=forwards)
    raise Refusal(
        subject,
        f"{interface.device} has no IP address, with which passt would speak there, and is no tap that QEMU could open",
        f"give {network.definition} an ipam, or, for addresses of the guest's own, a CNI that makes a tap (tap of "
        "containernetworking/plugins), and write `bridge: {}`",
    )


def _forwards(interface: Interface, elsewhere: Mapping[Protocol, tuple[Range, ...]]) -> Forwards:
    """Return those that are listed. Under `bridge` the guest is what has the pod's address, whatever is listed (as in
    KubeVirt)."""
    listed = [
        *((port.protocol, (port.port, port.port)) for port in interface.ports),
        *((ports.protocol, (ports.start, ports.end)) for ports in interface.portRanges),
    ]
    if not listed or interface.method == "bridge":
        return Forwards(listed=None, elsewhere=elsewhere)
    return Forwards(
        listed={
            protocol: ranges
            for protocol in PROTOCOLS
            if (ranges := tuple(ports for its, ports in listed if its == protocol))
        },
        elsewhere=elsewhere,
    )


def _without(ports: Range, taken: Range) -> tuple[Range, ...]:
    """Return what of a range is before another one, and what is behind it."""
    (first, last), (start, end) = ports, taken
    parts = ((first, min(last, start - 1)), (max(first, end + 1), last))
    return tuple(part for part in parts if part[0] <= part[1]) if start <= last and first <= end else (ports,)
