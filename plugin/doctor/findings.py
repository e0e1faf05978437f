"""What stands between a node's devices and a guest, each thing with its fix."""

from plugin.doctor.devices import of_device
from plugin.doctor.finding import NodeFinding
from plugin.doctor.node import of_node
from plugin.node.snapshot import Snapshot


def examine(snapshot: Snapshot) -> tuple[NodeFinding, ...]:
    """Return what is to be said of the node, be it fine or not, and what is not fine with its devices, in the
    inventory's order."""
    return (
        *of_node(snapshot),
        *(finding for device in snapshot.inventory.devices for finding in of_device(snapshot, device)),
    )
