"""The stanza `permittedHostDevices` of KubeVirt's custom resource: which of the node's devices a VM may request.

The fields are those of KubeVirt's api/core/v1/types.go (PciHostDevice, MediatedHostDevice). With
`externalResourceProvider: true` KubeVirt leaves handing them out to this plugin, and admits their resource names.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import yaml

from pci.host import Fault
from plugin.cards.claimable import ClaimableCard
from plugin.cards.inventory import Inventory
from program.problem import one_line


def permitted_host_devices(inventory: Inventory, claimable: Iterable[ClaimableCard] = ()) -> dict[str, Any]:
    """Return the stanza for all offered devices, by either protocol and healthy or not, and for the vGPUs that are made
    when claimed: one entry for each selector and resource, sorted.

    A PCI device is selected by vendor and device ID of its lead (`10DE:1EB8`, as KubeVirt writes it), a mediated device
    by the name of its type. A list without entries is left out.
    """
    devices = [*inventory.offered, *(vgpu.example for card in claimable for vgpu in card.vgpus)]
    offered = [(device, str(device.resource)) for device in devices]
    pci = {(device.lead.pci_id.upper(), resource) for device, resource in offered if device.mdev is None}
    mediated = {(device.mdev.type_name, resource) for device, resource in offered if device.mdev is not None}
    stanza = {
        "pciHostDevices": _entries("pciVendorSelector", pci),
        "mediatedDevices": _entries("mdevNameSelector", mediated),
    }
    return {"permittedHostDevices": {name: entries for name, entries in stanza.items() if entries}}


def permitted_yaml(inventory: Inventory, faults: Iterable[Fault], claimable: Sequence[ClaimableCard] = ()) -> str:
    """Return the stanza as YAML, to be pasted below `spec.configuration`; comments name entries that may be missing."""
    comments = [f"# not read: {one_line(fault)}" for fault in faults]
    if not inventory.offered and not claimable:
        comments.append("# This node offers no device; gpu-plugin inventory says why.")
    stanza = permitted_host_devices(inventory, claimable)
    if "mediatedDevices" in stanza["permittedHostDevices"]:
        comments.append(
            "# KubeVirt's virt-handler removes each mediated device of the node whose type its CR does not name,"
        )
        comments.append("# unless mediatedDevicesConfiguration.enabled is false there.")
    return "\n".join([*comments, yaml.safe_dump(stanza, sort_keys=False)])


def _entries(selector: str, pairs: set[tuple[str, str]]) -> list[dict[str, Any]]:
    return [
        {selector: value, "resourceName": resource, "externalResourceProvider": True}
        for value, resource in sorted(pairs)
    ]
