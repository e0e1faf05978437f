"""spec.domain.devices.interfaces and spec.networks."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator

from launcher.manifest.disks import BootOrder
from launcher.manifest.objects import Ignored, Items, Object, Refused
from launcher.manifest.scalars import AliasName, Text, first_twice
from program.errors import Nonsense

_HANDLER = (
    "it needs a tap that KubeVirt's handler makes with privileges in the pod's network",
    "write `passt: {}` instead",
)
_PLUGINS = ("network binding plugins are KubeVirt's", "write `passt: {}` instead")
_SECONDARY = ("secondary networks need KubeVirt's handler", "use the pod's network, `pod: {}`")
_PODS = ("passt gives the guest the pod's own addresses", "leave it out")


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


class Passt(Object):
    pass


class Port(Object):
    """A port of the pod that is forwarded to the same port of the guest."""

    name: Text | None = None
    protocol: Literal["TCP", "UDP"] = "TCP"
    port: Annotated[int, Field(ge=1, le=65535)]


class Interface(Object):
    """A network card. `passt` is what KubeVirt called it until 1.3 and gpu-launcher does, `passtBinding` what KubeVirt
    calls it now."""

    name: AliasName
    model: Literal["e1000", "e1000e", "igb", "ne2k_pci", "pcnet", "rtl8139", "virtio"] = "virtio"
    macAddress: MACAddress | None = None
    bootOrder: BootOrder | None = None
    # QEMU's highest (hw/acpi/pci.c); 0 is none.
    acpiIndex: Annotated[int, Field(ge=0, le=16 * 1024 - 1)] | None = None
    state: Literal["up", "down", "absent"] | None = None
    ports: Items[Port] = ()
    portRanges: Annotated[None, Refused("ports are forwarded one by one", "list each of them in ports")] = None
    passt: Passt | None = None
    passtBinding: Passt | None = None
    masquerade: Annotated[None, Refused(*_HANDLER)] = None
    bridge: Annotated[None, Refused(*_HANDLER)] = None
    slirp: Annotated[None, Refused("KubeVirt removed it as well", "write `passt: {}` instead")] = None
    macvtap: Annotated[None, Refused(*_PLUGINS)] = None
    sriov: Annotated[
        None,
        Refused("its address comes from Multus by way of KubeVirt", "request the virtual function as a hostDevice"),
    ] = None
    binding: Annotated[None, Refused(*_PLUGINS)] = None
    pciAddress: Annotated[None, Refused("guest addresses are gpu-launcher's and libvirt's", "leave it out")] = None
    dhcpOptions: Annotated[None, Refused("passt's DHCP server tells what the pod has", "leave it out")] = None
    tag: Annotated[Any, Ignored("tags are for the config drive's device metadata, which is not written")] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.passt is None and self.passtBinding is None:
            raise Nonsense("says nothing of how it is connected", "write `passt: {}`")
        if self.passt is not None and self.passtBinding is not None:
            raise Nonsense("has both passt and passtBinding, which are the same", "leave one of them out")
        forwarded = [(port.protocol, port.port) for port in self.ports]
        names = [port.name for port in self.ports if port.name is not None]
        if twice := first_twice(forwarded):
            raise Nonsense(f"ports has {twice[0]} {twice[1]} twice", "leave one of them out")
        if name := first_twice(names):
            raise Nonsense(f"two ports are called {name!r}", "rename one of them")
        return self


#: What a VM has that says nothing of networks, by the name that KubeVirt gives it.
DEFAULT = Interface(name="default", passt=Passt())


class PodNetwork(Object):
    vmNetworkCIDR: Annotated[None, Refused(*_PODS)] = None
    vmIPv6NetworkCIDR: Annotated[None, Refused(*_PODS)] = None


class Network(Object):
    name: AliasName
    pod: PodNetwork | None = None
    multus: Annotated[None, Refused(*_SECONDARY)] = None
    resourceClaim: Annotated[None, Refused(*_SECONDARY)] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.pod is None:
            raise Nonsense("says nothing of what it is", "write `pod: {}`")
        return self


def check_networks(interfaces: tuple[Interface, ...], networks: tuple[Network, ...]) -> None:
    """Raise Nonsense unless each interface has the network of its name, each network its interface, and there is at
    most one."""
    names = [interface.name for interface in interfaces]
    for name in names:
        if name not in {network.name for network in networks}:
            raise Nonsense(
                f"the interface {name!r} has no network", f"expected `{{name: {name}, pod: {{}}}}` in networks"
            )
    for network in networks:
        if network.name not in names:
            raise Nonsense(
                f"the network {network.name!r} has no interface",
                f"expected `{{name: {network.name}, passt: {{}}}}` in domain.devices.interfaces",
            )
    if len(networks) > 1:
        both = " and ".join(repr(network.name) for network in networks)
        raise Nonsense(f"the networks {both} are all the pod's, which is one", "leave all but one of them out")
