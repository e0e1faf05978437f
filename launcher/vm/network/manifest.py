"""spec.domain.devices.interfaces and spec.networks."""

from functools import partial
from ipaddress import AddressValueError, IPv4Network, IPv6Network, NetmaskValueError
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PlainValidator, WithJsonSchema, model_validator

from launcher.fields.objects import Below, Ignored, Items, Object, Refused, check_all, check_each, placed
from launcher.fields.scalars import AliasName, Matching, Text, first_twice
from launcher.vm.disks.manifest import BootOrder
from program.errors import Nonsense
from program.problem import excerpt

#: How an interface is connected. `passt` stands for all of its names.
BindingMethod = Literal["masquerade", "bridge", "passt", "sriov"]

_DNS_NAME = "[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_REMOVED = ("KubeVirt removed it as well", "write `masquerade: {}` instead")
_CLAIMED = (
    "network devices by DRA are an alpha of KubeVirt's",
    "use multus, or request the function as a hostDevice by claimName",
)


def _mac(value: Any) -> str:
    # KubeVirt takes hyphens too; libvirt takes colons alone, and no group address. QEMU takes zeros for no address.
    octets = value.replace("-", ":").lower().split(":") if isinstance(value, str) else []
    if len(octets) != 6 or not all(len(octet) == 2 and set(octet) <= set("0123456789abcdef") for octet in octets):
        raise Nonsense(f"{value!r} is no MAC address", "expected one like 02:00:00:00:00:01")
    if int(octets[0], 16) & 1:
        raise Nonsense(f"{value!r} is the address of a group", "expected an even first octet, as in 02:00:00:00:00:01")
    if octets == ["00"] * 6:
        raise Nonsense(f"{value!r} is no card's", "expected an address like 02:00:00:00:00:01")
    return ":".join(octets)


MACAddress = Annotated[
    str,
    PlainValidator(_mac),
    WithJsonSchema({"type": "string", "pattern": "^[0-9A-Fa-f][02468ACEace]([:-][0-9A-Fa-f]{2}){5}$"}),
]


def _network(kind: type[IPv4Network] | type[IPv6Network], longest: int, example: str, value: Any) -> Any:
    """Read a subnet with room for a gateway and a guest: its first two addresses. Host bits are ignored, as KubeVirt
    ignores them (net.ParseCIDR)."""
    try:
        network = kind(value, strict=False) if isinstance(value, str) and "/" in value else None
    except (AddressValueError, NetmaskValueError, ValueError):
        network = None
    if network is None or network.prefixlen > longest:
        raise Nonsense(f"{excerpt(value)} has no room for a gateway and a guest", f"expected a subnet like {example}")
    return network


IPv4Subnet = Annotated[
    IPv4Network,
    PlainValidator(partial(_network, IPv4Network, 30, "10.0.2.0/24"), json_schema_input_type=str),
]
IPv6Subnet = Annotated[
    IPv6Network,
    PlainValidator(partial(_network, IPv6Network, 126, "fd10:0:2::/120"), json_schema_input_type=str),
]


class Masquerade(Object):
    pass


class Bridge(Object):
    pass


class Passt(Object):
    pass


class SRIOV(Object):
    """A virtual function that Multus attaches to the pod, as a PCI device of the guest's."""


def _plugin(name: str) -> str:
    if name != "passt":
        raise Nonsense(
            f"{excerpt(name)} is a network binding plugin, a sidecar of KubeVirt's",
            "expected 'passt', or `masquerade: {}` instead of the binding",
        )
    return name


class Binding(Object):
    """A network binding plugin of KubeVirt's. passt is the only one that needs no plugin here."""

    name: Annotated[Text, AfterValidator(_plugin)]


class Port(Object):
    """A port of the pod that is forwarded to the same port of the guest."""

    name: Text | None = None
    protocol: Literal["TCP", "UDP"] = "TCP"
    port: Annotated[int, Field(ge=1, le=65535)]


class PortRange(Object):
    """Ports of the pod, from `start` to `end`, that are forwarded to the same ports of the guest."""

    protocol: Literal["TCP", "UDP"] = "TCP"
    start: Annotated[int, Field(ge=1, le=65535)]
    end: Annotated[int, Field(ge=1, le=65535)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.end < self.start:
            raise Nonsense(f"ends at {self.end}, before it starts at {self.start}", "expected the lower one first")
        return self


_NO_OPTION = Ignored("passt's DHCP server has no such option, and a warning says so")


class PrivateOption(Object):
    option: Annotated[int | None, _NO_OPTION] = None
    value: Annotated[Text | None, _NO_OPTION] = None


class DHCPOptions(Object):
    bootFileName: Annotated[Text | None, _NO_OPTION] = None
    tftpServerName: Annotated[Text | None, _NO_OPTION] = None
    ntpServers: Annotated[Items[Text], _NO_OPTION] = ()
    privateOptions: Annotated[Items[PrivateOption], _NO_OPTION] = ()


class Interface(Object):
    """A network card. passt has three names: `passt` in KubeVirt until 1.3 and in gpu-launcher, `passtBinding` in
    KubeVirt now, `binding: {name: passt}` between the two."""

    name: AliasName
    model: Literal["e1000", "e1000e", "igb", "ne2k_pci", "pcnet", "rtl8139", "virtio"] = "virtio"
    macAddress: MACAddress | None = None
    bootOrder: BootOrder | None = None
    # QEMU's highest (hw/acpi/pci.c); 0 is none.
    acpiIndex: Annotated[int, Field(ge=0, le=16 * 1024 - 1)] | None = None
    state: Literal["up", "down", "absent"] | None = None
    ports: Items[Port] = ()
    portRanges: Items[PortRange] = ()
    masquerade: Masquerade | None = None
    bridge: Bridge | None = None
    passt: Passt | None = None
    passtBinding: Passt | None = None
    binding: Binding | None = None
    slirp: Annotated[None, Refused(*_REMOVED)] = None
    macvtap: Annotated[None, Refused(*_REMOVED)] = None
    sriov: SRIOV | None = None
    pciAddress: Annotated[None, Refused("guest addresses are gpu-launcher's and libvirt's", "leave it out")] = None
    dhcpOptions: DHCPOptions | None = None
    tag: Annotated[Any, Ignored("tags are for the config drive's device metadata, which is not written")] = None

    @property
    def method(self) -> BindingMethod:
        """How the card is connected; all names of passt are `passt`."""
        if self.masquerade is not None:
            return "masquerade"
        if self.bridge is not None:
            return "bridge"
        return "sriov" if self.sriov is not None else "passt"

    @model_validator(mode="after")
    def _check(self) -> Self:
        methods = self.present_fields("masquerade", "bridge", "passt", "passtBinding", "binding", "sriov")
        if not methods:
            raise Nonsense("says nothing of how it is connected", "write `masquerade: {}`")
        if len(methods) > 1:
            raise Nonsense(
                f"is connected in {len(methods)} ways, {' and '.join(methods)}", "leave all but one of them out"
            )
        if self.sriov is not None and self.bootOrder is not None:
            raise Below("bootOrder", "is of a virtual function, which nobody boots from", "leave it out")
        if self.sriov is not None and self.state == "down":
            raise Below(
                "state", "is down, and a virtual function's link is the network's", "write absent, or leave it out"
            )
        forwarded = [(port.protocol, port.port) for port in self.ports]
        names = [port.name for port in self.ports if port.name is not None]
        if twice := first_twice(forwarded):
            raise Nonsense(f"ports has {twice[0]} {twice[1]} twice", "leave one of them out")
        if name := first_twice(names):
            raise Nonsense(f"two ports are called {name!r}", "rename one of them")
        return self


#: What a VM has that says nothing of networks, by the name and in the way that KubeVirt gives it.
DEFAULT = Interface.model_construct(name="default", masquerade=Masquerade.model_construct())


class PodNetwork(Object):
    """The pod's network. The two subnets are those of a masqueraded guest's addresses."""

    vmNetworkCIDR: IPv4Subnet = IPv4Network("10.0.2.0/24")
    vmIPv6NetworkCIDR: IPv6Subnet = IPv6Network("fd10:0:2::/120")


class MultusNetwork(Object):
    """A NetworkAttachmentDefinition; with `default` it is in place of the pod's network."""

    networkName: Annotated[
        Text,
        Matching(
            f"({_DNS_NAME}/)?{_DNS_NAME}",
            "is no NetworkAttachmentDefinition",
            "expected its name, or its namespace and name like lab/vlan-7",
        ),
    ]
    default: bool = False


class Network(Object):
    name: AliasName
    pod: PodNetwork | None = None
    multus: MultusNetwork | None = None
    resourceClaim: Annotated[None, Refused(*_CLAIMED)] = None

    @property
    def is_pods(self) -> bool:
        """True for the network that each pod has: its own, or the Multus network in place of it."""
        return self.multus is None or self.multus.default

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.pod is None and self.multus is None:
            raise Nonsense("says nothing of what it is", "write `pod: {}`, or multus with a networkName")
        if self.pod is not None and self.multus is not None:
            raise Nonsense("is pod and multus at once", "leave one of them out")
        return self


def check_networks(interfaces: tuple[Interface, ...], networks: tuple[Network, ...]) -> None:
    """Raise Nonsense unless each interface has a network of its name that it can be connected to, each network has an
    interface, and there is one pod network at most."""
    by_name = {interface.name: interface for interface in interfaces}
    known = {network.name for network in networks}
    check_all(
        partial(
            check_each,
            placed("domain.devices.interfaces", interfaces),
            lambda interface: _check_has_network(interface.name, known),
        ),
        partial(
            check_each,
            placed("networks", networks),
            lambda network: _check_network(network, by_name.get(network.name)),
        ),
        partial(_check_one_is_pods, networks),
    )


def _check_has_network(name: str, networks: set[str]) -> None:
    if name not in networks:
        raise Nonsense(f"the interface {name!r} has no network", f"expected `{{name: {name}, pod: {{}}}}` in networks")


def _check_network(network: Network, interface: Interface | None) -> None:
    if interface is None:
        raise Nonsense(
            f"the network {network.name!r} has no interface",
            f"expected `{{name: {network.name}, masquerade: {{}}}}` in domain.devices.interfaces",
        )
    if network.pod is not None and network.pod.model_fields_set and interface.method != "masquerade":
        raise Nonsense(
            f"the network {network.name!r} has addresses for a masqueraded guest, and its interface has the pod's own",
            "leave vmNetworkCIDR and vmIPv6NetworkCIDR out, or write `masquerade: {}`",
        )
    if network.pod is None and interface.method == "masquerade":
        raise Nonsense(
            f"the interface {network.name!r} is masqueraded, and its network is not `pod: {{}}`",
            "write `bridge: {}`, or `sriov: {}` for a virtual function",
        )
    if network.is_pods and interface.method == "sriov":
        raise Nonsense(
            f"the interface {network.name!r} is a virtual function, and its network is the pod's",
            "expected multus with a networkName in networks",
        )


def _check_one_is_pods(networks: tuple[Network, ...]) -> None:
    pods = [network for network in networks if network.is_pods]
    if len(pods) > 1:
        both = " and ".join(repr(network.name) for network in pods)
        raise Below("networks", f"{both} are all the pod's, which is one", "leave all but one of them out")
