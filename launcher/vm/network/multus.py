"""Second networks: what Multus is asked to attach to the pod, and what it reports as attached.

Annotations of the pod, by the Kubernetes Network Plumbing Working Group's standard (multi-net-spec, 1.3).
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from launcher.vm.cards.claims import VirtualFunctionOf
from launcher.vm.facts import PodInterface
from launcher.vm.network.manifest import Interface
from launcher.vm.spec import Spec
from pci.address import InvalidPCIAddress, PCIAddress
from program.errors import Refusal, UserError

NETWORKS = "k8s.v1.cni.cncf.io/networks"
STATUS = "k8s.v1.cni.cncf.io/network-status"
_DEFAULT_NETWORK = "v1.multus-cni.io/default-network"
#: Bytes of the annotation: Kubernetes takes 256 KiB of all of an object.
LARGEST = 1 << 20


class SecondNetwork(NamedTuple):
    """A network of the VM besides the pod's; the guest's interface on it, and the name of the pod's."""

    name: str
    definition: str
    interface: Interface
    device: str


class Status(NamedTuple):
    """Multus' report of a network: its definition with the namespace, and the pod's interface, empty for none."""

    definition: str
    device: str
    has_address: bool
    function: PCIAddress | None


def second_networks(spec: Spec) -> tuple[SecondNetwork, ...]:
    """Return the networks with an interface of the guest's, in the manifest's order; the pod's interfaces are net1,
    net2, ..."""
    interfaces = {interface.name: interface for interface in spec.domain.devices.connected}
    of_multus = [
        (network.name, network.multus)
        for network in spec.networks
        if network.multus is not None and not network.is_pods and network.name in interfaces
    ]
    return tuple(
        SecondNetwork(name, multus.networkName, interfaces[name], f"net{number}")
        for number, (name, multus) in enumerate(of_multus, start=1)
    )


def annotations(spec: Spec) -> dict[str, str]:
    """Return the pod's annotations for Multus; empty if the VM has none of its networks."""
    texts = {}
    for network in spec.networks:
        if network.multus is not None and network.multus.default:
            texts[_DEFAULT_NETWORK] = network.multus.networkName
    if second := second_networks(spec):
        texts[NETWORKS] = json.dumps(list(map(_selection, second)))
    return texts


def says_the_same(text: str, spec: Spec, namespace: str) -> bool:
    """Return whether an annotation for Multus, in either of its forms, asks for the same as annotations(): the networks
    of the VM in its `namespace`, in any order, and for their interfaces nothing more."""
    try:
        selections = _read_selection(text)
    except (ValueError, RecursionError):
        return False
    ours = [{"namespace": namespace, **_selection(network)} for network in second_networks(spec)]
    for selection in selections:
        selection = {"namespace": namespace, **selection}
        same = next((each for each in ours if selection.items() <= each.items()), None)
        if same is None:
            return False
        ours.remove(same)
    return not ours


def _read_selection(text: str) -> list[dict[str, Any]]:
    """Read NetworkSelectionElements: a JSON list, or names between commas as NAMESPACE/NAME@INTERFACE."""
    if not text.lstrip().startswith("["):
        short = [re.fullmatch(r"(?:([^/@]+)/)?([^/@]+)(?:@([^/@]+))?", each.strip()) for each in text.split(",")]
        parts = [match.groups() for match in short if match is not None]
        if len(parts) < len(short):
            raise ValueError
        named = [zip(("namespace", "name", "interface"), each, strict=True) for each in parts]
        return [{key: value for key, value in each if value is not None} for each in named]
    selections = json.loads(text)
    if not all(isinstance(each, dict) for each in selections):
        raise ValueError
    return list(selections)


def read_status(text: str, source: str) -> tuple[Status, ...]:
    """Read the annotation network-status, as Multus writes it; UserError, which begins with `source`, for any other
    text."""
    fix = f"expected the pod's annotation {STATUS}, a JSON list of objects"
    try:
        items = json.loads(text) if len(text) <= LARGEST else None
    except (ValueError, RecursionError) as error:
        raise UserError(source, "is not JSON", fix) from error
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise UserError(source, "is no list of networks", fix)
    return tuple(_status(item, source) for item in items)


def attached_to_the_pod(spec: Spec, statuses: tuple[Status, ...]) -> Mapping[str, PodInterface]:
    """Return the statuses by network. A network with neither an address nor a PCI device counts as a tap: the statuses
    do not tell taps."""
    interfaces, left = {}, list(statuses)
    second = second_networks(spec)
    # By the interface's name as well at first: a definition may be there twice. Another's pod names them otherwise.
    for matches in (_is_the_same, _by_definition):
        for network in second:
            if network.name in interfaces:
                continue
            status = next((status for status in left if matches(status, network)), None)
            if status is not None:
                left.remove(status)
                is_tap = not status.has_address and status.function is None
                interfaces[network.name] = PodInterface(
                    device=status.device, has_address=status.has_address, is_tap=is_tap, function=status.function
                )
    return interfaces


def virtual_function(wanted: VirtualFunctionOf, pod_interfaces: Mapping[str, PodInterface] | None) -> PCIAddress:
    """Return the virtual function that Multus attached; Refusal if that is unknown."""
    if pod_interfaces is None:
        raise UserError(
            f"network {wanted.network!r}",
            "which virtual function the pod has for it is not known",
            f"expected the pod's annotation {STATUS} (offline: gpu-launcher render --network-status FILE)",
        )
    interface = pod_interfaces.get(wanted.network)
    if interface is None or interface.function is None:
        raise Refusal(
            f"network {wanted.network!r}",
            f"the pod's annotation {STATUS} names no PCI device for it",
            "install the SR-IOV network operator, or Multus, the CNI plugin sriov and its device plugin, with the "
            "virtual functions bound to vfio-pci",
        )
    return interface.function


def _selection(network: SecondNetwork) -> Mapping[str, str]:
    """Return a NetworkSelectionElement. Its MAC address is that of the pod's interface, or of the virtual function, and
    so the guest's."""
    namespace, _, name = network.definition.rpartition("/")
    mac = network.interface.macAddress
    return {
        "name": name,
        **({"namespace": namespace} if namespace else {}),
        "interface": network.device,
        **({"mac": mac} if mac is not None else {}),
    }


def _status(item: Mapping[str, Any], source: str) -> Status:
    info = item.get("device-info")
    pci = info.get("pci") if isinstance(info, dict) else None
    address = pci.get("pci-address") if isinstance(pci, dict) else None
    try:
        function = PCIAddress.parse(address) if isinstance(address, str) else None
    except InvalidPCIAddress as error:
        raise UserError(source, f"device-info.pci.pci-address: {error}", "expected one like 0000:41:02.3") from error
    definition, device = item.get("name"), item.get("interface")
    return Status(
        definition=definition if isinstance(definition, str) else "",
        device=device if isinstance(device, str) else "",
        has_address=bool(item.get("ips")),
        function=function,
    )


def _is_the_same(status: Status, network: SecondNetwork) -> bool:
    return status.device == network.device and _by_definition(status, network)


def _by_definition(status: Status, network: SecondNetwork) -> bool:
    return f"/{status.definition}".endswith(f"/{network.definition}")
