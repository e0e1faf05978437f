"""`gpu-plugin doctor`: what stands between a node's devices and a guest, each thing with its fix."""

from plugin.doctor.devices import of_device
from plugin.doctor.finding import NodeFinding
from plugin.doctor.node import of_node
from plugin.doctor.paths import of_paths
from plugin.node.snapshot import Snapshot


def examine(snapshot: Snapshot) -> tuple[NodeFinding, ...]:
    """Return all findings about the node, also OK ones, then what is wrong with devices, in the inventory's order."""
    devices = snapshot.inventory.devices
    return (
        *of_node(snapshot),
        *of_paths(snapshot),
        *(finding for device in devices for finding in of_device(snapshot, device)),
    )
