"""What keeps a listed device from being handed out just now, beyond what sysfs says of its group: a node that is gone,
a function that fell off the bus, another plugin's pod that has it.

Pure: from what was seen to a reason for each device that has one.
"""

from collections.abc import Mapping

from pci.address import PCIAddress
from pci.viability import Hindrance
from plugin.cards.config import Serve
from plugin.cards.holders import Assignment
from plugin.cards.inventory import Device, Inventory
from plugin.cards.nodes import Nodes, missing_node


def troubles(
    inventory: Inventory,
    nodes: Nodes | None,
    *,
    holders: Mapping[str, Assignment],
    fallen: frozenset[PCIAddress],
    claimed: Mapping[str, str],
) -> Mapping[str, Hindrance]:
    """Return why each device on offer that is unhealthy is so, by its ID.

    `holders` has the assignment by which a pod has a device, by the device's ID; `fallen` are the functions whose
    config space reads as ones; `claimed` has the ResourceClaim that a device is prepared for, by the device's ID.
    """
    reasons: dict[str, Hindrance] = {}
    for device in inventory.offered:
        reason = (
            device.unhealthy
            or _trouble(device, nodes, inventory.noiommu, fallen)
            or _held(device, holders.get(device.id), claimed.get(device.id))
        )
        if reason is not None:
            reasons[device.id] = reason
    return reasons


def _trouble(
    device: Device, nodes: Nodes | None, noiommu: frozenset[int], fallen: frozenset[PCIAddress]
) -> Hindrance | None:
    if nodes is not None and (missing := missing_node(device, nodes, noiommu)) is not None:
        return missing
    for function in device.functions:
        if function.address in fallen:
            return Hindrance(
                f"fell off the bus: the config space of {function.address} reads as ones",
                "reset the slot or the node, and look for AER errors in the kernel's log",
            )
    return None


def _held(device: Device, holder: Assignment | None, claim: str | None) -> Hindrance | None:
    """Return who has the device in a way that whoever gives it out does not count."""
    by_dra = device.serve is Serve.DRA
    if holder is not None and (by_dra or not holder.is_of(device)):
        # What the device plugin gave out before the card was served by DRA is its own, and still in use.
        is_another = holder.resource != device.resource
        as_what = holder.resource if is_another else f"{holder.device_id} of {device.resource}"
        fix = "delete that pod, and let one device plugin alone serve the device"
        if by_dra and holder.is_of(device):
            fix = "the card is free for claims when that pod ends: it has it from the device plugin"
        return Hindrance(f"is in use by pod {holder.pod}, which has it as {as_what}", fix)
    if claim is not None and not by_dra:
        return Hindrance(f"is prepared for the ResourceClaim {claim}", "it is free when the pods of that claim end")
    return None
