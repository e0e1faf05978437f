"""What stands behind one resource: which devices it lists, which of the free ones are best, what a container gets."""

from collections.abc import Sequence
from typing import Protocol

from pci.resource import NodeDevice
from plugin.allocation import Allocation, Grounds, allocate, grounds, hold, pick
from plugin.errors import Refusal
from plugin.inventory import Device
from plugin.nodes import Node
from plugin.preference import Place, preferred
from plugin.serving.watch import Watch

#: As the kubelet is told: ID, whether healthy, NUMA node where it is known.
Listing = tuple[tuple[str, bool, int | None], ...]


class Offer(Protocol):
    """One resource. Refusal from `allocate` and `preferred` becomes the kubelet's error, and the pod's."""

    resource: str

    def listing(self) -> Listing: ...

    def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]: ...

    def allocate(self, containers: Sequence[Sequence[str]]) -> tuple[Allocation, ...]: ...


class CardOffer:
    """Cards, virtual functions and mediated devices of one resource."""

    def __init__(self, resource: str, watch: Watch) -> None:
        self.resource = resource
        self._watch = watch
        # By device ID, of one snapshot: made once, the kubelet asks again and again.
        self._grounds: dict[str, Grounds] = {}
        self._snapshot = watch.snapshot

    def listing(self) -> Listing:
        return self._watch.snapshot.listing(self.resource)

    def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
        by_id = self._watch.snapshot.inventory.by_id
        places = [_place(by_id[device_id]) for device_id in available if device_id in by_id]
        return preferred(places, must_include, size, self._watch.config.prefer.get(self.resource))

    def allocate(self, containers: Sequence[Sequence[str]]) -> tuple[Allocation, ...]:
        """One answer per container, from the node as it is at this moment: as it was seen, where that still holds, and
        as it is seen now otherwise."""
        try:
            return self._allocate(containers)
        except Refusal:
            self._watch.look_again()
            return self._allocate(containers)

    def _allocate(self, containers: Sequence[Sequence[str]]) -> tuple[Allocation, ...]:
        watch = self._watch
        allocations = []
        for device_ids in containers:
            devices = pick(watch.snapshot, self.resource, device_ids)
            allocation = allocate(watch.snapshot, self.resource, devices)
            if not hold(watch.sys, [self._grounds_of(device) for device in devices]):
                raise Refusal(f"{', '.join(device_ids)} of {self.resource} changed while it was handed out; try again")
            allocations.append(allocation)
        return tuple(allocations)

    def _grounds_of(self, device: Device) -> Grounds:
        watch = self._watch
        if self._snapshot is not watch.snapshot:
            self._grounds.clear()
            self._snapshot = watch.snapshot
        found = self._grounds.get(device.id)
        if found is None:
            nodes = watch.snapshot.nodes_of(device)
            found = self._grounds[device.id] = grounds(watch.sys, watch.dev, device, nodes)
        return found


def _place(device: Device) -> Place:
    lead = device.lead
    # The mediated devices of one card are the nearest to each other.
    bridges = lead.bridges if device.mdev is None else (*lead.bridges, lead.address)
    return Place(device.id, lead.numa_node, lead.root, bridges)


class NodeDeviceOffer:
    """A device node that containers share: as many places as the config says, all the same node."""

    def __init__(self, device: NodeDevice, watch: Watch) -> None:
        self.resource = device.resource()
        self._device = device
        self._watch = watch

    def listing(self) -> Listing:
        there = self._device.node in self._watch.nodes.others
        count = self._watch.config.node_devices.get(self._device, 0)
        return tuple((f"{self._device}-{number}", there, None) for number in range(count))

    def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*must_include, *sorted(available)]))[:size]

    def allocate(self, containers: Sequence[Sequence[str]]) -> tuple[Allocation, ...]:
        path = f"/dev/{self._device.node}"
        listed = {device_id for device_id, _, _ in self.listing()}
        for device_id in (device_id for container in containers for device_id in container):
            if device_id not in listed:
                raise Refusal(f"{device_id!r} is not a device of {self.resource} on this node")
        self._watch.look_at_nodes()
        if self._device.node not in self._watch.nodes.others:
            raise Refusal(f"{self.resource}: {path} does not exist on this node; load its kernel module")
        return tuple(Allocation(env={}, nodes=(Node(path, path),)) for _ in containers)
