"""spec.domain.devices.interfaces and spec.networks."""

from typing import Annotated, Literal

from launcher.manifest.disks import BootOrder
from launcher.manifest.scalars import AliasName, between, matching
from launcher.model import Ignored, Refused, model

_HANDLER = (
    "it needs a tap that KubeVirt's handler makes with privileges in the pod's network; write `passt: {}` instead"
)
_PLUGINS = "network binding plugins are KubeVirt's; write `passt: {}` instead"


@model
class Passt:
    pass


@model
class Port:
    name: str | None = None
    protocol: Literal["TCP", "UDP"] = "TCP"
    port: Annotated[int, between(1, 65535)]


@model
class Interface:
    name: AliasName
    model: Literal["e1000", "e1000e", "igb", "ne2k_pci", "pcnet", "rtl8139", "virtio"] = "virtio"
    macAddress: (
        Annotated[
            str,
            matching("([0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}", "is no MAC address; expected one like 02:00:00:00:00:01"),
        ]
        | None
    ) = None
    bootOrder: BootOrder | None = None
    acpiIndex: Annotated[int, between(0, 16 * 1024 - 1)] | None = None
    state: Literal["up", "down", "absent"] | None = None
    ports: tuple[Port, ...] = ()
    passt: Passt | None = None
    passtBinding: Passt | None = None
    masquerade: Annotated[None, Refused(_HANDLER)] = None
    bridge: Annotated[None, Refused(_HANDLER)] = None
    slirp: Annotated[None, Refused("KubeVirt removed it as well; write `passt: {}` instead")] = None
    macvtap: Annotated[None, Refused(_PLUGINS)] = None
    sriov: Annotated[
        None, Refused("its address comes from Multus by way of KubeVirt; request the virtual function as a hostDevice")
    ] = None
    binding: Annotated[None, Refused(_PLUGINS)] = None
    dhcpOptions: Annotated[None, Refused("passt's DHCP server tells what the pod has; leave it out")] = None
    pciAddress: Annotated[None, Refused("guest addresses are gpu-launcher's and libvirt's; leave it out")] = None
    tag: Annotated[str | None, Ignored("tags are for the config drive's device metadata, which is not written")] = None


@model
class PodNetwork:
    vmNetworkCIDR: Annotated[None, Refused("passt gives the guest the pod's own addresses; leave it out")] = None
    vmIPv6NetworkCIDR: Annotated[None, Refused("passt gives the guest the pod's own addresses; leave it out")] = None


@model
class Network:
    name: AliasName
    pod: PodNetwork | None = None
    multus: Annotated[None, Refused("secondary networks need KubeVirt's handler; use the pod's network, `pod: {}`")] = (
        None
    )
