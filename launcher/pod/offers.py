"""Who offers what a VM's pod asks of device plugins, as far as the names tell.

A pod waits, Pending, for a resource that no node offers, and its events say no more than that."""

from collections.abc import Mapping
from typing import Any

from pci.resource import NODE_DEVICES
from pci.vendors import VENDORS_BELOW

_KUBEVIRTS = "devices.kubevirt.io"


def waits_for(vm: str, pod: Mapping[str, Any], node_devices: str) -> str | None:
    """Return what a node has to offer before this VM's pod runs, in a sentence; None for nothing but CPUs and memory.
    `pod` is the pod's spec.

    `node_devices` is the domain of the resources that are /dev/kvm and the like.
    """
    limits = pod["containers"][0]["resources"].get("limits", {})
    asked = [(resource, number) for resource, number in limits.items() if "/" in resource]
    if not asked:
        return None
    said = ", ".join(
        f"{'' if number == '1' else f'{number} of '}{resource} ({_who(resource, node_devices)})"
        for resource, number in asked
    )
    return f"{vm}: is Pending until a node offers {said}"


def _who(resource: str, node_devices: str) -> str:
    domain, _, name = resource.partition("/")
    if domain == NODE_DEVICES == node_devices:
        return f"gpu-plugin does, with node_devices: {{{name}: 110}} in its config"
    if domain == _KUBEVIRTS:
        return "KubeVirt does, on its own nodes"
    if domain == node_devices:
        return "by --node-devices"
    if domain in VENDORS_BELOW:
        return "gpu-plugin does, for cards of that name on vfio-pci"
    return "gpu-plugin does by a rule of its config, or another device plugin"
