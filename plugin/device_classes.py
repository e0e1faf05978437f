"""DeviceClasses through which a pod that requests an extended resource gets devices from DRA: KubeVirt's pods request
one for `deviceName`. The scheduler makes the claim itself (`extendedResourceName`, KEP-5004).

A class counts for the whole cluster. On each node the scheduler counts a resource once: as the kubelet's allocatable
where a device plugin has it, and by the class elsewhere. So nodes may move to DRA one by one.
"""

import re
from collections.abc import Iterable
from typing import Any

import yaml

from pci.host import Fault
from pci.slices import DRIVER, of_resource
from plugin.cards.claimable import ClaimableCard
from plugin.cards.config import Serve
from plugin.cards.inventory import Inventory
from program.problem import one_line


def device_classes(inventory: Inventory, claimable: Iterable[ClaimableCard] = ()) -> list[dict[str, Any]]:
    """Return a class for each resource that DRA serves on the node, sorted; also of vGPUs made when claimed."""
    devices = [*inventory.published, *(vgpu.example for card in claimable for vgpu in card.vgpus)]
    return [_class(resource) for resource in sorted({str(device.resource) for device in devices})]


def device_classes_yaml(inventory: Inventory, faults: Iterable[Fault], claimable: Iterable[ClaimableCard] = ()) -> str:
    """Return the classes as YAML for kubectl; comments name missing ones, with reasons."""
    comments = [f"# not read: {one_line(fault)}" for fault in faults]
    by_plugin = sorted({str(device.resource) for device in inventory.offered if device.serve is Serve.DEVICE_PLUGIN})
    comments += [f"# {resource}: left out, because the device plugin serves it on this node" for resource in by_plugin]
    classes = device_classes(inventory, claimable)
    if not classes:
        comments.append("# DRA serves no device of this node; gpu-plugin inventory and the config's `serve` say why.")
    documents = yaml.safe_dump_all(classes, sort_keys=False, width=1000) if classes else ""
    return "".join([*(f"{line}\n" for line in comments), documents])


def _class(resource: str) -> dict[str, Any]:
    prefix, _, name = resource.partition("/")
    # A vendor's own driver has classes like `gpu.nvidia.com`. No two resources of a node get one name: they would share
    # their variable too, which the inventory refuses.
    class_name = f"{re.sub('[^a-z0-9]', '-', name.lower())}.{prefix}.{DRIVER}"
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": class_name},
        "spec": {
            "extendedResourceName": resource,
            "selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}" && {of_resource(resource)}'}}],
        },
    }
