"""The attachment of each of the guest's network cards, the ports of the pod that reach the guest there, and passt's
command line.

passt stands between the guest and the pod's network, as a process of the launcher's user:
https://passt.top/passt/about/. KubeVirt makes a bridge, a tap and rules as root instead (pkg/network); what the guest
sees of both is compared in docs/network.md. passt listens on all addresses of the pod, so that a port reaches the guest
at one of its cards, the first that has it.

libvirt looks for a program `passt` on PATH (src/qemu/qemu_passt.c) and passes on what an <interface> says: addresses,
the IPv4 netmask, ports and the pod's interface. Neither 9.0 nor 11.3 can name a gateway: the guest would have the
pod's, which is not in its subnet; and where the pod has none on an interface, passt has no DHCP there. So what libvirt
finds first is a script of a few lines that calls passt with them.

Istio's proxy, a container that Istio's webhook adds to the pod, takes the pod's connections and passes them on, so that
some TCP ports are its own. The annotation is KubeVirt's, and both are Istio's
(istio.io/latest/docs/reference/config/labels).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from typing import Literal, NamedTuple

from launcher.vm.annotations import is_true
from launcher.vm.facts import PodInterface
from launcher.vm.network.manifest import Interface, PodNetwork
from launcher.vm.network.multus import SecondNetwork, second_networks
from launcher.vm.spec import Metadata, Spec
from program.errors import Refusal, UserError

Protocol = Literal["TCP", "UDP"]
PROTOCOLS: tuple[Protocol, ...] = ("TCP", "UDP")
#: From the first port to the last, which may be the same.
Range = tuple[int, int]
_ALL = (0, 65535)
#: Which addresses of its subnet a masqueraded guest's gateway and the guest have (KubeVirt's
#: pkg/network/setup/netpod/masquerade).
GATEWAY, GUEST = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwards:
    """The ports of the pod that reach the guest at a card, by protocol; `ports` is None for all ports. Those that are
    `elsewhere` reach the guest at an earlier card; `reserved` TCP ports are another container's.

    `own`: None in a pod. On an own machine only 127.0.0.1 listens; `own` has the port there of each of the guest's TCP
    ports that does not have its own number there.
    """

    ports: Mapping[Protocol, tuple[Range, ...]] | None
    elsewhere: Mapping[Protocol, tuple[Range, ...]] = field(default_factory=dict)
    reserved: tuple[Range, ...] = ()
    own: Mapping[int, int] | None = None

    @property
    def are_all(self) -> bool:
        return self.ports is None

    def excluded(self, protocol: Protocol) -> tuple[Range, ...]:
        """Return the ports that are `elsewhere` or `reserved`."""
        return (*self.elsewhere.get(protocol, ()), *(self.reserved if protocol == "TCP" else ()))

    def ranges(self, protocol: Protocol) -> tuple[Range, ...]:
        """Return the ports that reach the guest here."""
        ranges = (_ALL,) if self.ports is None else self.ports.get(protocol, ())
        return _without_all(ranges, self.excluded(protocol))

    def lists(self, protocol: Protocol, ports: tuple[Range, ...]) -> bool:
        """Return whether the manifest lists one of these ports here."""
        listed = () if self.ports is None else self.ports.get(protocol, ())
        return _without_all(listed, ports) != listed


@dataclass(frozen=True, slots=True, kw_only=True)
class PasstAttachment:
    """passt, on the pod's network, or on the pod's interface `device`.

    `subnets`: a masqueraded guest's, of IPv4 and of IPv6. Without any the guest has the pod's own addresses, and
    `gateway` is the guest's if the pod has none on that interface.
    """

    subnets: tuple[IPv4Network | IPv6Network, ...] = ()
    device: str | None = None
    gateway: IPv4Address | None = None
    forwards: Forwards


@dataclass(frozen=True, slots=True, kw_only=True)
class Tap:
    """A tap that a CNI has made in the pod: the guest's frames are on its network as they are."""

    device: str


class Attached(NamedTuple):
    """A network card and its attachment."""

    interface: Interface
    to: PasstAttachment | Tap


def attached(
    spec: Spec,
    pod_interfaces: Mapping[str, PodInterface] | None = None,
    own: Mapping[int, int] | None = None,
    reserved: tuple[Range, ...] = (),
) -> tuple[Attached, ...]:
    """Return the guest's emulated network cards, in their order; virtual functions are passed through.

    `own`: the ports of an own machine by the guest's (Forwards); None in a pod. `reserved`: TCP ports that another
    container of the pod has.
    `pod_interfaces` is what Multus has attached to the pod, by network; None, if that is not known, stands for
    interfaces with an address. Refusal for an interface that the pod lacks, or that takes privileges to connect.
    """
    pods = {network.name: network.pod for network in spec.networks}
    second = {network.name: network for network in second_networks(spec)}
    taken: dict[Protocol, tuple[Range, ...]] = {}
    cards = []
    for interface in spec.domain.devices.connected:
        if interface.method == "sriov":
            continue
        forwards = _forwards(interface, dict(taken), reserved) if own is None else _forwarded_here(interface, own)
        if interface.name in second:
            to = _to_second(second[interface.name], forwards, pod_interfaces)
        else:
            pod = pods.get(interface.name) or PodNetwork()
            subnets = (pod.vmNetworkCIDR, pod.vmIPv6NetworkCIDR) if interface.method == "masquerade" else ()
            to = PasstAttachment(subnets=subnets, forwards=forwards)
        if isinstance(to, PasstAttachment):
            taken = {protocol: (*taken.get(protocol, ()), *forwards.ranges(protocol)) for protocol in PROTOCOLS}
        cards.append(Attached(interface, to))
    return tuple(cards)


def refuse_forwarded(port: int, spec: Spec) -> None:
    """Raise UserError if the manifest lists this TCP port as one of its guest's: the pod's metrics need a port of their
    own. If all ports are the guest's, passt leaves out a port on which a process already listens."""
    for card in attached(spec):
        if not isinstance(card.to, PasstAttachment) or card.to.forwards.are_all:
            continue
        if any(first <= port <= last for first, last in card.to.forwards.ranges("TCP")):
            wrong = f"the pod's port is forwarded to the guest's, of interface {card.interface.name!r}"
            raise UserError(f"--metrics {port}", wrong, "name another port")


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


def _forwards(
    interface: Interface, elsewhere: Mapping[Protocol, tuple[Range, ...]], reserved: tuple[Range, ...] = ()
) -> Forwards:
    """Return the ports that the manifest lists. With `bridge` the guest has the pod's address, and all ports (as in
    KubeVirt)."""
    listed = [
        *((port.protocol, (port.port, port.port)) for port in interface.ports),
        *((ports.protocol, (ports.start, ports.end)) for ports in interface.portRanges),
    ]
    if not listed or interface.method == "bridge":
        return Forwards(ports=None, elsewhere=elsewhere, reserved=reserved)
    ranges = {protocol: tuple(ports for its, ports in listed if its == protocol) for protocol in PROTOCOLS}
    return Forwards(ports=ranges, elsewhere=elsewhere, reserved=reserved)


def _forwarded_here(interface: Interface, own: Mapping[int, int]) -> Forwards:
    """Return the ports that the manifest lists, and those of `own`: never all ports, since the others are the
    machine's."""
    listed = _forwards(interface, {}).ports or {}
    single = tuple((port, port) for port in own if (port, port) not in listed.get("TCP", ()))
    return Forwards(ports={**listed, "TCP": (*listed.get("TCP", ()), *single)}, own=own)


def _without_all(ranges: tuple[Range, ...], taken: tuple[Range, ...]) -> tuple[Range, ...]:
    for each in taken:
        ranges = tuple(left for ports in ranges for left in _without(ports, each))
    return ranges


def _without(ports: Range, taken: Range) -> tuple[Range, ...]:
    """Return the parts of a range before and behind another one."""
    (first, last), (start, end) = ports, taken
    parts = ((first, min(last, start - 1)), (max(first, end + 1), last))
    return tuple(part for part in parts if part[0] <= part[1]) if start <= last and first <= end else (ports,)


INJECT = "sidecar.istio.io/inject"
#: From the first port to the last, as KubeVirt leaves them out of passt's (its pkg/network/istio, ReservedPorts);
#: istio.io/latest/docs/ops/deployment/application-requirements says what each is for.
PORTS = ((15000, 15001), (15004, 15004), (15006, 15006), (15008, 15009), (15020, 15021), (15053, 15053), (15090, 15090))


def is_injected(metadata: Metadata) -> bool:
    """Return whether the VM's pod is to have the proxy, by the annotation, or without one by the label."""
    return is_true(metadata.annotations.written.get(INJECT) or metadata.labels.get(INJECT))


_SCRIPT = """\
#!/bin/sh
# passt as libvirt calls it, with what libvirt has no words for. gpu-launcher writes this at the start of a VM.
PATH=${{PATH#*:}}  # without the directory of this file, which is the first
case " $* " in
{cases}esac
exec passt "$@" --no-map-gw
"""
_CASE = """\
*" {option} "*) set -- "$@" {gateways} ;;
"""


def script(cards: Iterable[Attached]) -> str | None:
    """Return the text of the script that is called as passt; None if no card needs one.

    --no-map-gw: passt would take a guest to the pod's loopback by the gateway's address, where only the pod's own
    containers are meant to be. A card is told from the others by the one option that it alone has.
    """
    by_passt = [card.to for card in cards if isinstance(card.to, PasstAttachment)]
    if not by_passt:
        return None
    return _SCRIPT.format(cases="".join(map(_case, by_passt)))


def _case(to: PasstAttachment) -> str:
    if to.subnets:
        gateways = " ".join(f"--gateway {subnet[GATEWAY]}" for subnet in to.subnets)
        return _CASE.format(option=f"--address {to.subnets[0][GUEST]}", gateways=gateways)
    if to.gateway is not None:
        return _CASE.format(option=f"--interface {to.device}", gateways=f"--gateway {to.gateway}")
    return ""
