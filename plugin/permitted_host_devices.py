"""What KubeVirt has to be told of a node's devices before it lets a VM ask for them: the stanza `permittedHostDevices`
of its custom resource, below `spec.configuration`.

The fields are those of KubeVirt's api/core/v1/types.go (PciHostDevice, MediatedHostDevice). With
`externalResourceProvider: true` KubeVirt leaves handing them out to this plugin, and admits their resource names.
"""

from typing import Any

import yaml

from plugin.cards.inventory import Inventory
from program.problem import one_line


def permitted_host_devices(inventory: Inventory) -> dict[str, Any]:
    """The stanza for all that the kubelet hears of, healthy or not: one entry for each selector and resource, sorted.

    A PCI device is selected by vendor and device of its lead (`10DE:1EB8`, as KubeVirt writes it), a mediated device by
    its type's name. A list without entries is left out.
    """
    pci: set[tuple[str, str]] = set()
    mediated: set[tuple[str, str]] = set()
    for resource, devices in inventory.listed.items():
        for device in devices:
            if device.mdev is None:
                pci.add((device.lead.pci_id.upper(), resource))
            else:
                mediated.add((device.mdev.type_name, resource))
    stanza = {
        "pciHostDevices": _entries("pciVendorSelector", pci),
        "mediatedDevices": _entries("mdevNameSelector", mediated),
    }
    return {"permittedHostDevices": {name: entries for name, entries in stanza.items() if entries}}


def permitted_yaml(inventory: Inventory) -> str:
    """The stanza as YAML, to be pasted below `spec.configuration`; comments say what it does not hold, and why."""
    comments = [f"# not read: {one_line(fault)}" for fault in inventory.faults]
    if not inventory.listed:
        comments.append("# This node offers no device; gpu-plugin inventory says why.")
    return "\n".join([*comments, yaml.safe_dump(permitted_host_devices(inventory), sort_keys=False)])


def _entries(selector: str, pairs: set[tuple[str, str]]) -> list[dict[str, Any]]:
    return [
        {selector: value, "resourceName": resource, "externalResourceProvider": True}
        for value, resource in sorted(pairs)
    ]
