"""The floor: the smallest grpcio plugin that answers the same Allocate, from memory.

`python -m tests.bench.floor KUBELET_DIR ANSWERS`: ANSWERS is a JSON file with the `resource`, its `variable`, and for
each device ID the `nodes` it comes with. It looks at nothing, notices nothing and checks nothing. On asyncio, as
gpu-plugin is: its server takes a twelfth longer to answer than grpcio's with threads, but half the CPU when idle.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc

from plugin.kubelet_api.v1beta1 import deviceplugin_pb2 as api
from plugin.kubelet_api.v1beta1 import deviceplugin_pb2_grpc as rpc

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"  # generic in its stubs only


class Floor(rpc.DevicePluginServicer):
    def __init__(self, variable: str, nodes: dict[str, list[str]]) -> None:
        self._variable = variable
        self._nodes = nodes

    async def GetDevicePluginOptions(self, request: api.Empty, context: Context) -> api.DevicePluginOptions:
        return api.DevicePluginOptions()

    async def ListAndWatch(self, request: api.Empty, context: Context) -> AsyncIterator[api.ListAndWatchResponse]:
        yield api.ListAndWatchResponse(devices=[api.Device(ID=ID, health="Healthy") for ID in self._nodes])
        await asyncio.Event().wait()

    async def Allocate(self, request: api.AllocateRequest, context: Context) -> api.AllocateResponse:
        return api.AllocateResponse(container_responses=map(self._container, request.container_requests))

    def _container(self, request: api.ContainerAllocateRequest) -> api.ContainerAllocateResponse:
        nodes = dict.fromkeys(node for ID in request.devices_ids for node in self._nodes[ID])
        return api.ContainerAllocateResponse(
            envs={self._variable: ",".join(sorted(request.devices_ids))},
            devices=[api.DeviceSpec(container_path=node, host_path=node, permissions="rw") for node in nodes],
        )


async def serve(kubelet_dir: str, resource: str, variable: str, nodes: dict[str, list[str]]) -> None:
    server = grpc.aio.server()
    rpc.add_DevicePluginServicer_to_server(Floor(variable, nodes), server)
    server.add_insecure_port(f"unix:{kubelet_dir}/floor.sock")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{kubelet_dir}/kubelet.sock") as channel:
        request = api.RegisterRequest(version="v1beta1", endpoint="floor.sock", resource_name=resource)
        await rpc.RegistrationStub(channel).Register(request)
    await server.wait_for_termination()


def main() -> None:
    kubelet_dir, path = sys.argv[1:]
    with open(path) as file:  # noqa: PTH123 (pathlib is an import more)
        answers = json.load(file)
    asyncio.run(serve(kubelet_dir, answers["resource"], answers["variable"], answers["nodes"]))


if __name__ == "__main__":
    main()
