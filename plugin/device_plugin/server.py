"""The device plugin API for one resource: answers the kubelet's messages from an offer."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import lru_cache

import grpc

from plugin.allocation import Allocation
from plugin.device_plugin.offer import Listing, Offer
from plugin.kubelet_api.v1beta1 import deviceplugin_pb2 as api
from plugin.kubelet_api.v1beta1 import deviceplugin_pb2_grpc
from plugin.watch.registry import Context
from plugin.watch.watch import Watch
from program.errors import ProgramError

_log = logging.getLogger(__name__)

#: Opening a VFIO group reads and writes its node; no container has to make a node (m).
_PERMISSIONS = "rw"

_AFTER_THE_ANSWER = 0.1  # seconds


class DevicePluginServicer(deviceplugin_pb2_grpc.DevicePluginServicer):
    """Serves one resource. `registered`: the kubelet took the registration, None until it answers; `watched`: it has
    opened ListAndWatch; `lost`: a stream of ListAndWatch ended, and not by us. Calls `moved` when one of these changes.

    `close` ends the streams, each with an empty list, so that the node's capacity goes down at once.
    """

    def __init__(self, offer: Offer, watch: Watch, moved: Callable[[], None]) -> None:
        self._offer = offer
        self._watch = watch
        self._allocations = watch.counters.allocations
        self._moved = moved
        self.registered: bool | None = None
        self.watched = False
        self.lost = False
        self._closed = False
        self._given: list[Mapping[str, str]] = []

    def close(self) -> None:
        self._closed = True

    def hear(self, registered: bool) -> None:
        """Take the kubelet's answer to the registration."""
        self.registered = registered
        self._moved()

    async def GetDevicePluginOptions(self, request: api.Empty, context: Context) -> api.DevicePluginOptions:
        return api.DevicePluginOptions(get_preferred_allocation_available=True)

    async def ListAndWatch(self, request: api.Empty, context: Context) -> AsyncIterator[api.ListAndWatchResponse]:
        """Send the list at first and at every change, and an empty one at the end."""
        self.watched = True
        self._watch.counters.streams[self._offer.resource] += 1
        self._moved()
        try:
            sent: Listing | None = None
            while not (self._watch.stopped or self._closed):
                change = self._watch.next_change
                listing = self._offer.listing()
                if listing != sent:
                    yield api.ListAndWatchResponse(devices=[_device(*device) for device in listing])
                    sent = listing
                await change.wait()
            yield api.ListAndWatchResponse()
        finally:
            if not (self._watch.stopped or self._closed):
                self.lost = True
                self._moved()

    async def GetPreferredAllocation(
        self, request: api.PreferredAllocationRequest, context: Context
    ) -> api.PreferredAllocationResponse:
        """Return the best of the free devices, one answer per container."""
        try:
            answers = [
                self._offer.preferred(
                    container.available_deviceIDs, container.must_include_deviceIDs, container.allocation_size
                )
                for container in request.container_requests
            ]
        except ProgramError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return api.PreferredAllocationResponse(
            container_responses=[api.ContainerPreferredAllocationResponse(deviceIDs=answer) for answer in answers]
        )

    async def Allocate(self, request: api.AllocateRequest, context: Context) -> api.AllocateResponse:
        """Return one answer per container, from the node as it is at this moment."""
        try:
            containers = [container.devices_ids for container in request.container_requests]
            allocations = await self._offer.allocate(containers)
        except ProgramError as error:
            self._allocations[self._offer.resource, "refused"] += 1
            _log.error("refused to allocate: %s", error, extra={"resource": self._offer.resource})
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        self._allocations[self._offer.resource, "given"] += len(allocations)
        self._report_soon(allocations)
        return api.AllocateResponse(container_responses=map(_container, allocations))

    async def PreStartContainer(
        self, request: api.PreStartContainerRequest, context: Context
    ) -> api.PreStartContainerResponse:
        """Decline: GetDevicePluginOptions says that this call is not needed."""
        return await context.abort(grpc.StatusCode.UNIMPLEMENTED, "nothing is to be done before a container starts")

    def _report_soon(self, allocations: Iterable[Allocation]) -> None:
        """Log allocations after the answer, several in one line: writing a line takes as long as an allocation, and
        pods wait for both."""
        if not self._given:
            asyncio.get_running_loop().call_later(_AFTER_THE_ANSWER, self._report)
        self._given += [allocation.env for allocation in allocations]

    def _report(self) -> None:
        resource = self._offer.resource
        variables = " ".join(f"{name}={value}" for env in self._given for name, value in env.items())
        _log.info("allocated %s", variables or f"{len(self._given)} x {resource}", extra={"resource": resource})
        self._given = []


# A list of 512 cards differs from the last one in a card or two.
@lru_cache(maxsize=4096)
def _device(device_id: str, healthy: bool, numa_node: int | None) -> api.Device:
    topology = None
    if numa_node is not None:  # no hint at all where the node is unknown: "node 0" would be a lie
        topology = api.TopologyInfo(nodes=[api.NUMANode(ID=numa_node)])
    return api.Device(ID=device_id, health="Healthy" if healthy else "Unhealthy", topology=topology)


def _container(allocation: Allocation) -> api.ContainerAllocateResponse:
    return api.ContainerAllocateResponse(
        envs=dict(allocation.env),
        devices=[
            api.DeviceSpec(container_path=node, host_path=node, permissions=_PERMISSIONS) for node in allocation.nodes
        ],
    )
