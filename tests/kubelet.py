"""A stand-in for the kubelet: the real protocol over real unix sockets, and the kubelet's habits.

As the kubelet does: it empties its directory of sockets when it starts; it dials the plugin inside Register; it takes
every ListAndWatch message as the whole list; it counts all of a resource's devices as unhealthy when the stream ends; a
registration replaces the one before; and it asks for devices in no particular order.
"""

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from plugin.naming import is_resource_name
from plugin.v1beta1 import deviceplugin_pb2 as api
from plugin.v1beta1 import deviceplugin_pb2_grpc as rpc


@dataclass
class Endpoint:
    """One registration: the plugin's socket, and what its ListAndWatch said last."""

    name: str
    stub: rpc.DevicePluginStub
    channel: grpc.Channel
    devices: dict[str, api.Device] = field(default_factory=dict)
    connected: bool = True
    lists: int = 0


class Kubelet(rpc.RegistrationServicer):
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.endpoints: dict[str, Endpoint] = {}
        self.registrations: list[api.RegisterRequest] = []
        self._allocated: dict[str, set[str]] = {}
        self._changed = threading.Condition()
        self._server: grpc.Server | None = None

    def start(self) -> None:
        for path in self.directory.iterdir():
            if path.is_socket():
                path.unlink(missing_ok=True)  # its plugin may be removing it, too
        self._server = grpc.server(ThreadPoolExecutor(8))
        rpc.add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.directory}/kubelet.sock")
        self._server.start()

    def stop(self) -> None:
        assert self._server is not None
        self._server.stop(grace=None).wait()
        for endpoint in self.endpoints.values():
            endpoint.channel.close()
        (self.directory / "kubelet.sock").unlink(missing_ok=True)

    def restart(self) -> None:
        """As a kubelet that was killed: it knows nothing afterwards but what pods were given."""
        self.stop()
        self.endpoints.clear()
        self.start()

    def Register(self, request: api.RegisterRequest, context: grpc.ServicerContext) -> api.Empty:
        if request.version != "v1beta1" or not is_resource_name(request.resource_name):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"cannot register {request}")
        channel = grpc.insecure_channel(
            f"unix:{self.directory}/{request.endpoint}", options=[("grpc.enable_http_proxy", 0)]
        )
        endpoint = Endpoint(request.endpoint, rpc.DevicePluginStub(channel), channel)
        endpoint.stub.GetDevicePluginOptions(api.Empty(), timeout=10)
        with self._changed:
            self.registrations.append(request)
            self.endpoints[request.resource_name] = endpoint
            self._changed.notify_all()
        threading.Thread(target=self._watch, args=[endpoint], daemon=True).start()
        return api.Empty()

    def _watch(self, endpoint: Endpoint) -> None:
        try:
            for message in endpoint.stub.ListAndWatch(api.Empty()):
                with self._changed:
                    endpoint.devices = {device.ID: device for device in message.devices}
                    endpoint.lists += 1
                    self._changed.notify_all()
        except (grpc.RpcError, ValueError):
            pass  # the plugin died, or this kubelet closed the channel: the stream ends either way
        with self._changed:
            endpoint.connected = False
            self._changed.notify_all()

    def healthy(self, resource: str) -> tuple[str, ...]:
        """The IDs that can be allocated, ascending: what the node's allocatable would count."""
        endpoint = self.endpoints.get(resource)
        if endpoint is None or not endpoint.connected:
            return ()
        return tuple(sorted(ID for ID, device in endpoint.devices.items() if device.health == "Healthy"))

    def wait_until(self, condition: Callable[[], bool], seconds: float = 30) -> None:
        """Wait for something that registrations and lists can bring about."""
        with self._changed:
            assert self._changed.wait_for(condition, seconds), f"not within {seconds} s; last seen: {self.endpoints}"

    def allocate(self, resource: str, count: int) -> api.ContainerAllocateResponse:
        """Give a container that many free devices, as pod admission would; RpcError where the plugin refuses."""
        taken = self._allocated.setdefault(resource, set())
        free = [ID for ID in self.healthy(resource) if ID not in taken]
        assert len(free) >= count, f"{count} of {resource} asked for, free: {free}"
        return self.allocate_devices(resource, random.sample(free, count))

    def allocate_devices(self, resource: str, device_ids: list[str]) -> api.ContainerAllocateResponse:
        request = api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=device_ids)])
        response: api.AllocateResponse = self.endpoints[resource].stub.Allocate(request, timeout=30)
        self._allocated.setdefault(resource, set()).update(device_ids)
        return response.container_responses[0]


@contextmanager
def running_kubelet(directory: Path) -> Iterator[Kubelet]:
    kubelet = Kubelet(directory)
    kubelet.start()
    try:
        yield kubelet
    finally:
        kubelet.stop()
