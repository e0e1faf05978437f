"""What keeps a listed device from being handed out just now, beyond what sysfs says of its group: a node that is gone,
a function that fell off the bus, another plugin's pod that has it.

Pure: from what was seen to a reason for each device that has one.
"""

from collections.abc import Mapping

from pci.address import PCIAddress
from pci.viability import Hindrance
from plugin.cards.holders import Assignment
from plugin.cards.inventory import Device, Inventory
from plugin.cards.nodes import Nodes, missing_node


def troubles(
    inventory: Inventory,
    nodes: Nodes | None,
    *,
    holders: Mapping[str, Assignment],
    fallen: frozenset[PCIAddress],
) -> Mapping[str, Hindrance]:
    """Return why each listed device that is unhealthy is so, by its ID.

    `holders` has the assignment by which a pod has a device, by the device's ID; `fallen` are the functions whose
    config space reads as ones.
    """
    reasons: dict[str, Hindrance] = {}
    for resource, devices in inventory.listed.items():
        for device in devices:
            reason = device.unhealthy or _trouble(device, resource, nodes, inventory.noiommu, holders, fallen)
            if reason is not None:
                reasons[device.id] = reason
    return reasons


def _trouble(
    device: Device,
    resource: str,
    nodes: Nodes | None,
    noiommu: frozenset[int],
    holders: Mapping[str, Assignment],
    fallen: frozenset[PCIAddress],
) -> Hindrance | None:
    if nodes is not None and (missing := missing_node(device, nodes, noiommu)) is not None:
        return missing
    for function in device.functions:
        if function.address in fallen:
            return Hindrance(
                f"fell off the bus: the config space of {function.address} reads as ones",
                "reset the slot or the node, and look for AER errors in the kernel's log",
            )
    holder = holders.get(device.id)
    if holder is not None and not holder.is_of(device):
        as_what = holder.resource if holder.resource != resource else f"{holder.device_id} of {resource}"
        return Hindrance(
            f"is in use by pod {holder.pod}, which has it as {as_what}",
            "delete that pod, and let one device plugin alone serve the device",
        )
    return None
