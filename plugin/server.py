"""The device plugin API for one resource: the kubelet's messages on one side, our inventory and allocation behind."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc

from plugin.allocation import Allocation, allocate
from plugin.errors import PluginError
from plugin.inventory import Device
from plugin.v1beta1 import deviceplugin_pb2 as api
from plugin.v1beta1 import deviceplugin_pb2_grpc
from plugin.watch import Watch

_log = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"  # generic in its stubs only

#: Opening a VFIO group reads and writes its node; nothing in a container has to make one (m).
_PERMISSIONS = "rw"


class DevicePluginServicer(deviceplugin_pb2_grpc.DevicePluginServicer):
    """Serves one resource. `watched` is set once the kubelet opened ListAndWatch; `streams` counts the open ones."""

    def __init__(self, resource: str, watch: Watch) -> None:
        self._resource = resource
        self._watch = watch
        self.watched = asyncio.Event()
        self.streams = 0

    async def GetDevicePluginOptions(self, request: api.Empty, context: Context) -> api.DevicePluginOptions:
        return api.DevicePluginOptions()

    async def ListAndWatch(self, request: api.Empty, context: Context) -> AsyncIterator[api.ListAndWatchResponse]:
        """The whole list at first and at every change; at the end an empty one, so that capacity goes down at once."""
        self.streams += 1
        try:
            self.watched.set()
            sent: tuple[Device, ...] | None = None
            while not self._watch.stopped:
                change = self._watch.next_change
                devices = self._watch.inventory.on_offer.get(self._resource, ())
                if devices != sent:
                    yield api.ListAndWatchResponse(devices=map(_device, devices))
                    sent = devices
                await change.wait()
            yield api.ListAndWatchResponse()
        finally:
            self.streams -= 1

    async def Allocate(self, request: api.AllocateRequest, context: Context) -> api.AllocateResponse:
        """One answer per container, from the node as it is at this moment."""
        try:
            inventory = self._watch.look_again()
            allocations = [
                allocate(inventory, self._resource, container.devices_ids) for container in request.container_requests
            ]
        except PluginError as error:
            _log.error("refused to allocate: %s", error)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        for allocation in allocations:
            _log.info("allocated %s", ", ".join(f"{name}={value}" for name, value in allocation.env.items()))
        return api.AllocateResponse(container_responses=map(_container, allocations))


def _device(device: Device) -> api.Device:
    topology = None
    if device.numa_node is not None:  # no hint at all where the node is unknown: "node 0" would be a lie
        topology = api.TopologyInfo(nodes=[api.NUMANode(ID=device.numa_node)])
    return api.Device(ID=str(device.address), health="Healthy", topology=topology)


def _container(allocation: Allocation) -> api.ContainerAllocateResponse:
    return api.ContainerAllocateResponse(
        envs=dict(allocation.env),
        devices=[
            api.DeviceSpec(container_path=node, host_path=node, permissions=_PERMISSIONS) for node in allocation.nodes
        ],
    )
