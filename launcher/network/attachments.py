"""What each of the guest's network cards is attached to, and which ports of the pod reach it there.

passt stands between the guest and the pod's network, as a process of the launcher's user:
https://passt.top/passt/about/. KubeVirt makes a bridge, a tap and rules as root instead (pkg/network); what the guest
sees of both is compared in docs/network.md.
"""

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Literal, NamedTuple

from launcher.manifest.interfaces import Interface, PodNetwork
from launcher.manifest.spec import Spec

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
    """The ports of the pod that reach the guest, of each protocol in their order; None for all of both."""

    listed: dict[Protocol, tuple[Range, ...]] | None

    @property
    def are_all(self) -> bool:
        return self.listed is None

    def ranges(self, protocol: Protocol) -> tuple[Range, ...]:
        return (_ALL,) if self.listed is None else self.listed.get(protocol, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Passt:
    """passt, on the pod's network. `addresses` are a masqueraded guest's, of IPv4 and of IPv6; without any the guest
    has the pod's own."""

    addresses: tuple[GuestAddress, ...]
    forwards: Forwards


class Attached(NamedTuple):
    """A network card, and what it is attached to."""

    interface: Interface
    to: Passt


def attached(spec: Spec) -> tuple[Attached, ...]:
    """Return the network cards that the guest has, in their order."""
    networks = {network.name: network for network in spec.networks}
    found = []
    for interface in spec.domain.devices.connected:
        network = networks.get(interface.name)
        found.append(Attached(interface, _to(interface, network.pod if network is not None else None)))
    return tuple(found)


def _to(interface: Interface, pod: PodNetwork | None) -> Passt:
    pod = pod or PodNetwork()
    masqueraded = interface.method == "masquerade"
    addresses = (GuestAddress(pod.vmNetworkCIDR), GuestAddress(pod.vmIPv6NetworkCIDR)) if masqueraded else ()
    return Passt(addresses=addresses, forwards=_forwards(interface))


def _forwards(interface: Interface) -> Forwards:
    """Return those that are listed. Under `bridge` the guest is what has the pod's address, whatever is listed (as in
    KubeVirt)."""
    listed = [
        *((port.protocol, (port.port, port.port)) for port in interface.ports),
        *((ports.protocol, (ports.start, ports.end)) for ports in interface.portRanges),
    ]
    if not listed or interface.method == "bridge":
        return Forwards(listed=None)
    return Forwards(
        listed={
            protocol: ranges
            for protocol in PROTOCOLS
            if (ranges := tuple(ports for its, ports in listed if its == protocol))
        }
    )
