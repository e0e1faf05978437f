"""`gpu-plugin doctor`: findings about what keeps a node's devices from guests, each with its fix."""

from plugin.doctor.devices import of_device
from plugin.doctor.finding import NodeFinding
from plugin.doctor.node import of_node
from plugin.doctor.paths import of_paths
from plugin.node.snapshot import Snapshot


def examine(snapshot: Snapshot) -> tuple[NodeFinding, ...]:
    """Return all findings about the node, also OK ones, then those about devices, in the inventory's order."""
    devices = snapshot.inventory.devices
    return (
        *of_node(snapshot),
        *of_paths(snapshot),
        *(finding for device in devices for finding in of_device(snapshot, device)),
    )
