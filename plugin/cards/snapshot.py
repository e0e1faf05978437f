"""All that was seen of the node at one moment, and what follows from it for each device."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pci.address import PCIAddress
from pci.viability import Hindrance
from plugin.cards.health import troubles
from plugin.cards.holders import Assignment
from plugin.cards.inventory import Device, Inventory
from plugin.cards.nodes import Node, Nodes, device_nodes


@dataclass(frozen=True)
class Snapshot:
    """All that was seen of the node at one moment.

    `nodes` is None if only sysfs was looked at. `holders` has the assignment by which a pod has a device, by the
    device's ID; `sees_pods` is whether the kubelet says who has what at all. `fallen` are the functions that fell off
    the bus. `claimed` has the ResourceClaim (`namespace/name`) that a device is prepared for, by the device's ID;
    `kept` why one that a claim had could not be given back to its driver, and `unlinked` why the NVLinks of a device do
    not work. `refusals` has every device that is to be bound to vfio when a claim gets it: why that is not possible
    now, None if it is.
    """

    inventory: Inventory
    nodes: Nodes | None
    holders: Mapping[str, Assignment] = field(default_factory=dict)
    sees_pods: bool = False
    fallen: frozenset[PCIAddress] = frozenset()
    claimed: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, Hindrance] = field(default_factory=dict)
    refusals: Mapping[str, Hindrance | None] = field(default_factory=dict)
    unlinked: Mapping[str, Hindrance] = field(default_factory=dict)

    @cached_property
    def troubles(self) -> Mapping[str, Hindrance]:
        """Why a device on offer is unhealthy, by its ID; a healthy one is absent."""
        its = troubles(
            self.inventory,
            self.nodes,
            holders=self.holders,
            fallen=self.fallen,
            claimed=self.claimed,
            refusals=self.refusals,
            kept=self.kept,
        )
        offered = {device.id for device in self.inventory.offered}
        return {**{device_id: reason for device_id, reason in self.unlinked.items() if device_id in offered}, **its}

    def reason(self, device: Device) -> Hindrance | None:
        """Return why the device cannot be handed out now; None if it can."""
        return device.withheld or self.troubles.get(device.id)

    def nodes_of(self, device: Device) -> tuple[Node, ...]:
        """Return the nodes of a device and its group; none if /dev was not looked at."""
        return () if self.nodes is None else device_nodes(device, self.nodes, self.inventory.noiommu)

    def listing(self, resource: str) -> tuple[tuple[str, bool, int | None], ...]:
        """Return what the kubelet is told of a resource: ID, whether healthy, NUMA node."""
        return tuple(
            (device.id, device.id not in self.troubles, device.numa_node)
            for device in self.inventory.listed.get(resource, ())
        )
