"""One resource for the kubelet: its list of devices, the best free devices, and the answer for a container."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from pci.resource import NodeDevice
from plugin.allocation import Allocation, Grounds, allocate, grounds, hold, pick, unknown_device
from plugin.cards.inventory import Device
from plugin.cards.preference import Candidate, preferred
from plugin.fabric.ownership import Partitions
from plugin.watch.watch import Watch
from program.errors import Refusal

#: A device in the kubelet's list: ID, whether healthy, NUMA node if known.
Listing = tuple[tuple[str, bool, int | None], ...]


class CardOffer:
    """Cards, virtual functions and mediated devices of one resource."""

    def __init__(self, resource: str, watch: Watch, partitions: Partitions) -> None:
        self.resource = resource
        self._watch = watch
        self._partitions = partitions
        # By device ID, of one snapshot: made once, the kubelet asks again and again.
        self._grounds: dict[str, Grounds] = {}
        self._snapshot = watch.snapshot

    def listing(self) -> Listing:
        return self._watch.snapshot.listing(self.resource)

    def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
        snapshot = self._watch.snapshot
        by_id = snapshot.inventory.by_id
        devices = [by_id[device_id] for device_id in available if device_id in by_id]
        partition = self._partitions.preferred(devices, must_include, size)
        if partition is not None:
            return partition
        candidates = [_candidate(device) for device in devices]
        return preferred(candidates, must_include, size, snapshot.config.prefer.get(self.resource))

    async def allocate(self, containers: Sequence[Sequence[str]]) -> tuple[Allocation, ...]:
        """Return one answer per container, from the node as it is now: by the last snapshot if it still holds, or else
        by a new one. The cards' NVLinks work when this returns."""
        try:
            allocations = await self._allocate(containers)
        except Refusal:
            await self._watch.look_again()
            allocations = await self._allocate(containers)
        if self._watch.snapshot.config.fabric is not None:
            snapshot = self._watch.snapshot
            variables_of = await self._partitions.acquire([pick(snapshot, ids, self.resource) for ids in containers])
            return tuple(
                replace(allocation, env={**allocation.env, **variables})
                for allocation, variables in zip(allocations, variables_of, strict=True)
            )
        return allocations

    async def _allocate(self, containers: Sequence[Sequence[str]]) -> tuple[Allocation, ...]:
        snapshot = self._watch.snapshot
        if self._snapshot is not snapshot:
            self._grounds.clear()
            self._snapshot = snapshot
        allocations = []
        for device_ids in containers:
            devices = pick(snapshot, device_ids, self.resource)
            its_grounds = [self._grounds_of(device) for device in devices]
            allocation = allocate(snapshot, self.resource, devices, [each.nodes for each in its_grounds])
            if not await self._hold(its_grounds):
                raise Refusal(
                    f"{', '.join(device_ids)} of {self.resource}", "changed while it was handed out", "try again"
                )
            allocations.append(allocation)
        return tuple(allocations)

    async def _hold(self, grounds: Sequence[Grounds]) -> bool:
        sources = self._watch.sources
        # The type of a vGPU is read from its driver, which may never answer.
        if any(each.device.mdev is None and each.device.lead.vgpu_type is not None for each in grounds):
            return await sources.reader.ask(hold, sources.sys, grounds)
        return hold(sources.sys, grounds)

    def _grounds_of(self, device: Device) -> Grounds:
        if device.id not in self._grounds:
            sources, nodes = self._watch.sources, self._snapshot.nodes_of(device)
            self._grounds[device.id] = grounds(sources.sys, sources.dev, device, nodes)
        return self._grounds[device.id]


def _candidate(device: Device) -> Candidate:
    lead = device.lead
    # The mediated devices of one card are the nearest to each other.
    bridges = lead.bridges if device.mdev is None else (*lead.bridges, lead.address)
    return Candidate(device.id, lead.numa_node, lead.root, bridges)


class NodeDeviceOffer:
    """A device node that containers share: as many devices as the config says, all the same node."""

    def __init__(self, device: NodeDevice, watch: Watch) -> None:
        self.resource = device.resource()
        self._device = device
        self._watch = watch

    def listing(self) -> Listing:
        exists = self._exists()
        count = self._watch.snapshot.config.node_devices.get(self._device, 0)
        return tuple((f"{self._device}-{number}", exists, None) for number in range(count))

    def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*must_include, *sorted(available)]))[:size]

    async def allocate(self, containers: Sequence[Sequence[str]]) -> tuple[Allocation, ...]:
        path = f"/dev/{self._device.node}"
        listed = {device_id for device_id, _, _ in self.listing()}
        for device_id in (device_id for container in containers for device_id in container):
            if device_id not in listed:
                raise unknown_device(device_id, self.resource)
        self._watch.look_at_nodes()
        if not self._exists():
            raise Refusal(self.resource, f"{path} does not exist on this node", "load its kernel module")
        return tuple(Allocation(env={}, nodes=(path,)) for _ in containers)

    def _exists(self) -> bool:
        nodes = self._watch.snapshot.nodes
        return nodes is not None and self._device.node in nodes.others


#: Refusal from `allocate` and `preferred` becomes the kubelet's error, and the pod's.
Offer: TypeAlias = CardOffer | NodeDeviceOffer
