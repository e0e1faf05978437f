"""A device plugin that writes what it is told: it stands for those of others. NVIDIA's lists every function of a card
(before its version 1.5), and there is none for mediated devices in the lab.

    python3 -c SOURCE RESOURCE DEVICES NAME=VALUE NODE...

There are DEVICES of them; who asks for some gets the variable and the nodes. It runs on the node, in gpu-plugin's
image, which has the kubelet's API.
"""

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from plugin.kubelet_api.v1beta1 import deviceplugin_pb2 as api
from plugin.kubelet_api.v1beta1 import deviceplugin_pb2_grpc as rpc

_KUBELET = Path("/var/lib/kubelet/device-plugins")


class Plugin(rpc.DevicePluginServicer):
    def __init__(self, devices: int, variable: str, nodes: list[str]) -> None:
        name, _, value = variable.partition("=")
        specs = [api.DeviceSpec(host_path=node, container_path=node, permissions="rw") for node in nodes]
        self._answer = api.ContainerAllocateResponse(envs={name: value}, devices=specs)
        self._devices = [api.Device(ID=str(number), health="Healthy") for number in range(devices)]

    def GetDevicePluginOptions(self, request: api.Empty, context: object) -> api.DevicePluginOptions:
        return api.DevicePluginOptions()

    def ListAndWatch(self, request: api.Empty, context: object) -> Iterator[api.ListAndWatchResponse]:
        yield api.ListAndWatchResponse(devices=self._devices)
        time.sleep(1 << 20)

    def Allocate(self, request: api.AllocateRequest, context: object) -> api.AllocateResponse:
        return api.AllocateResponse(container_responses=[self._answer] * len(request.container_requests))


def main(resource: str, devices: str, variable: str, *nodes: str) -> None:
    """Serve until it is killed."""
    socket = _KUBELET / f"{resource.replace('/', '-')}.sock"
    socket.unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor())
    rpc.add_DevicePluginServicer_to_server(Plugin(int(devices), variable, [*nodes]), server)
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    with grpc.insecure_channel(f"unix://{_KUBELET}/kubelet.sock") as kubelet:
        asked = api.RegisterRequest(version="v1beta1", endpoint=socket.name, resource_name=resource)
        rpc.RegistrationStub(kubelet).Register(asked)
    server.wait_for_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
