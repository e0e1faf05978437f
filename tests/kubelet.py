"""A stand-in for the kubelet: the real protocol over real unix sockets, and the kubelet's habits.

As the kubelet does: it empties its directory of sockets when it starts; it dials the plugin inside Register, or finds
its socket in plugins_registry; it takes every ListAndWatch message as the whole list of the resource, whichever plugin
sent it; it counts all of a resource's devices as unhealthy when the last stream ends, until the next list; it writes
its checkpoint at every list and allocation; it asks for devices in no particular order; and it tells who has which
device (pod-resources).

Two plugins of one resource are told apart from Kubernetes 1.37 on: the one that stays takes over, and registering a
socket twice changes nothing. Before, the last one to register counts, and the end of any stream that had the resource
ends that one (kubernetes issue 121994; runClient in pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go).
"""

import json
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from plugin.cards.names import is_resource_name
from plugin.kubelet_api.pluginregistration_v1 import registration_pb2 as found
from plugin.kubelet_api.pluginregistration_v1 import registration_pb2_grpc as found_rpc
from plugin.kubelet_api.podresources_v1 import podresources_pb2 as pods_api
from plugin.kubelet_api.podresources_v1 import podresources_pb2_grpc as pods_rpc
from plugin.kubelet_api.v1beta1 import deviceplugin_pb2 as api
from plugin.kubelet_api.v1beta1 import deviceplugin_pb2_grpc as rpc
from tests.waiting import allowed, until

_LOOK_AT_REGISTRY = 0.02  # seconds; the kubelet's plugin manager takes one


@dataclass
class Endpoint:
    """One registration: the plugin's socket, and what its ListAndWatch said last. `connected` is whether the kubelet
    still counts on it."""

    name: str
    stub: rpc.DevicePluginStub
    channel: grpc.Channel
    devices: dict[str, api.Device] = field(default_factory=dict)
    connected: bool = True
    lists: int = 0


class Kubelet(rpc.RegistrationServicer, pods_rpc.PodResourcesListerServicer):
    """`pods` is what each pod (`namespace/name`) has, by resource; it outlives the kubelet, as its checkpoint does.
    `neighbours` are all IDs of each resource of another plugin; `tells_ids` is False before Kubernetes 1.28.
    `refuses` are the resources whose registration it refuses, `ignores` those it takes and then does not watch."""

    def __init__(self, directory: Path, *, registry: Path | None = None, before_1_37: bool = False) -> None:
        self.directory = directory
        self.registry = registry
        self.before_1_37 = before_1_37
        self.endpoints: dict[str, Endpoint] = {}
        self.registrations: list[api.RegisterRequest] = []
        self.pods: dict[str, dict[str, set[str]]] = {}
        self.neighbours: dict[str, list[str]] = {}
        self.tells_ids = True
        self.refuses: set[str] = set()
        self.ignores: set[str] = set()
        self._life = _Life()
        self._changed = threading.Condition()
        self._server: grpc.Server | None = None

    @property
    def pod_resources(self) -> Path:
        return self.directory / "pod-resources" / "kubelet.sock"

    def start(self) -> None:
        for path in self.directory.iterdir():
            if path.is_socket():
                path.unlink(missing_ok=True)  # its plugin may be removing it, too
        self.pod_resources.parent.mkdir(exist_ok=True)
        self._life = _Life()
        self._server = grpc.server(ThreadPoolExecutor(8))
        rpc.add_RegistrationServicer_to_server(self, self._server)
        pods_rpc.add_PodResourcesListerServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.pod_resources}")
        self._server.add_insecure_port(f"unix:{self.directory}/kubelet.sock")
        self._server.start()
        if self.registry is not None:
            threading.Thread(target=self._look_at_registry, args=[self.registry, self._life], daemon=True).start()

    def stop(self, *, killed: bool = False) -> None:
        """Stop, and remove the socket; a kubelet that was killed leaves it behind."""
        assert self._server is not None
        socket, kept = self.directory / "kubelet.sock", self.directory / "kept"
        if killed:
            socket.rename(kept)
        self._life.over.set()
        self._server.stop(grace=None).wait()
        with self._changed:
            clients = [*self._life.clients.values(), *self.endpoints.values()]
            self.endpoints.clear()
        for endpoint in clients:
            endpoint.channel.close()
        if killed:
            kept.rename(socket)
        else:
            socket.unlink(missing_ok=True)

    def restart(self) -> None:
        """As a kubelet that was killed: it knows nothing afterwards but what pods were given."""
        self.stop()
        self.start()

    # Registration.

    def Register(self, request: api.RegisterRequest, context: grpc.ServicerContext) -> api.Empty:
        if request.version != "v1beta1" or not is_resource_name(request.resource_name):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"cannot register {request}")
        if request.resource_name in self.refuses:
            context.abort(grpc.StatusCode.UNAVAILABLE, "not this one")
        life = self._life
        try:
            endpoint = self._connect(request.resource_name, self.directory / request.endpoint, life)
        except grpc.RpcError as error:
            context.abort(grpc.StatusCode.UNKNOWN, f"failed to dial device plugin: {error}")
        with self._changed:
            self.registrations.append(request)  # before its first list: who sees that sees this
            self._changed.notify_all()
        if endpoint is not None:
            self._begin_to_watch(request.resource_name, endpoint, life)
        return api.Empty()

    def _look_at_registry(self, registry: Path, life: "_Life") -> None:
        """Register the sockets that appear there, forget those that go."""
        known: dict[Path, str] = {}
        while not life.over.wait(_LOOK_AT_REGISTRY):
            there = {path for path in registry.glob("*.sock") if path.is_socket()}
            for path in known.keys() - there:
                self._let_go(known.pop(path), path.name, life)
            for path in there - known.keys():
                with grpc.insecure_channel(f"unix:{path}", options=_OPTIONS) as channel, suppress(grpc.RpcError):
                    registration = found_rpc.RegistrationStub(channel)
                    info: found.PluginInfo = registration.GetInfo(found.InfoRequest(), timeout=allowed(1))
                    takes = info.type == "DevicePlugin" and "v1beta1" in info.supported_versions
                    if takes and is_resource_name(info.name) and info.name not in self.refuses:
                        endpoint = self._connect(info.name, Path(info.endpoint), life)
                        if endpoint is not None:
                            self._begin_to_watch(info.name, endpoint, life)
                        known[path] = info.name
                        status = found.RegistrationStatus(plugin_registered=True)
                    else:
                        status = found.RegistrationStatus(plugin_registered=False, error="not this one")
                    registration.NotifyRegistrationStatus(status, timeout=allowed(1))

    def _connect(self, resource: str, socket: Path, life: "_Life") -> Endpoint | None:
        """Dial the plugin; return what is to be watched then. None for one that is registered already, for a resource
        that it ignores, and where the kubelet has ended meanwhile."""
        key = self._key(resource, socket.name)
        if not self.before_1_37 and key in life.clients:
            return None
        watches = resource not in self.ignores
        channel = grpc.insecure_channel(f"unix:{socket}", options=_OPTIONS)
        endpoint = Endpoint(socket.name, rpc.DevicePluginStub(channel), channel)
        try:
            endpoint.stub.GetDevicePluginOptions(api.Empty(), timeout=allowed(10))
        except grpc.RpcError:
            channel.close()
            raise
        with self._changed:
            if life.over.is_set():
                channel.close()
                return None
            life.clients[key] = self.endpoints[resource] = endpoint
            self._changed.notify_all()
        return endpoint if watches else None

    def _begin_to_watch(self, resource: str, endpoint: Endpoint, life: "_Life") -> None:
        threading.Thread(target=self._watch, args=[resource, endpoint, life], daemon=True).start()

    def _key(self, resource: str, socket: str) -> tuple[str, str]:
        return resource, "" if self.before_1_37 else socket

    def _watch(self, resource: str, endpoint: Endpoint, life: "_Life") -> None:
        # ValueError is grpc's for a channel that this kubelet has closed.
        with suppress(grpc.RpcError, ValueError):
            for message in endpoint.stub.ListAndWatch(api.Empty()):
                with self._changed:
                    life.lists[resource] = endpoint.devices = {device.ID: device for device in message.devices}
                    endpoint.lists += 1
                    if not life.over.is_set():
                        self._write_checkpoint()
                    self._changed.notify_all()
        with self._changed:
            endpoint.connected = False
            self._changed.notify_all()
        endpoint.channel.close()
        self._let_go(resource, endpoint.name, life)

    def _let_go(self, resource: str, socket: str, life: "_Life") -> None:
        """The plugin on this socket has gone: whoever is registered under its key is registered no more."""
        with self._changed:
            gone = life.clients.pop(self._key(resource, socket), None)
            if gone is None or life.over.is_set():
                return
            gone.connected = False
            if self.endpoints[resource] is gone:
                others = [endpoint for (of, _), endpoint in life.clients.items() if of == resource]
                if others:
                    self.endpoints[resource] = random.choice(others)
                else:
                    life.lists.pop(resource, None)
            self._changed.notify_all()
        gone.channel.close()

    # Devices and pods.

    def healthy(self, resource: str) -> tuple[str, ...]:
        """The IDs that can be allocated, ascending: what the node's allocatable would count."""
        endpoint = self.endpoints.get(resource)
        if endpoint is None or not endpoint.connected:
            return ()
        listed = self._life.lists.get(resource, {})
        return tuple(sorted(ID for ID, device in listed.items() if device.health == "Healthy"))

    def wait_until(self, condition: Callable[[], bool], seconds: float = 30) -> None:
        """Wait for something that registrations and lists can bring about."""
        with self._changed:
            until(lambda: self._changed.wait_for(condition, 1.0), seconds, lambda: self.endpoints)

    def allocate(self, resource: str, count: int, pod: str | None = None) -> api.ContainerAllocateResponse:
        """Give a pod that many free devices, as its admission would; RpcError where the plugin refuses."""
        taken = {ID for has in self.pods.values() for ID in has.get(resource, ())}
        free = [ID for ID in self.healthy(resource) if ID not in taken]
        assert len(free) >= count, f"{count} of {resource} asked for, free: {free}"
        return self.allocate_devices(resource, random.sample(free, count), pod)

    def allocate_devices(
        self, resource: str, device_ids: list[str], pod: str | None = None
    ) -> api.ContainerAllocateResponse:
        request = api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=device_ids)])
        response: api.AllocateResponse = self.endpoints[resource].stub.Allocate(request, timeout=allowed(30))
        self.give(pod or f"default/pod-{len(self.pods)}", resource, device_ids)
        return response.container_responses[0]

    def give(self, pod: str, resource: str, device_ids: list[str]) -> None:
        """A pod has these devices from now on; of whose plugin doesn't matter."""
        self.pods.setdefault(pod, {}).setdefault(resource, set()).update(device_ids)
        self._write_checkpoint()

    def free(self, pod: str) -> None:
        """The pod has ended; the kubelet tells nobody."""
        del self.pods[pod]

    def _write_checkpoint(self) -> None:
        text = json.dumps(
            {pod: {resource: sorted(has[resource]) for resource in has} for pod, has in self.pods.items()}
        )
        temporary = self.directory / f".kubelet_internal_checkpoint{threading.get_ident()}"
        temporary.write_text(text)
        temporary.rename(self.directory / "kubelet_internal_checkpoint")

    def List(
        self, request: pods_api.ListPodResourcesRequest, context: grpc.ServicerContext
    ) -> pods_api.ListPodResourcesResponse:
        response = pods_api.ListPodResourcesResponse()
        for pod, has in self.pods.copy().items():
            namespace, _, name = pod.partition("/")
            devices = [
                pods_api.ContainerDevices(resource_name=resource, device_ids=ids) for resource, ids in has.items()
            ]
            container = pods_api.ContainerResources(name="main", devices=devices)
            response.pod_resources.append(pods_api.PodResources(name=name, namespace=namespace, containers=[container]))
        return response

    def GetAllocatableResources(
        self, request: pods_api.AllocatableResourcesRequest, context: grpc.ServicerContext
    ) -> pods_api.AllocatableResourcesResponse:
        """What is healthy of each plugin that is registered, the `neighbours`, and else what pods have."""
        if not self.tells_ids:
            context.abort(grpc.StatusCode.UNKNOWN, "Pod Resources API GetAllocatableResources disabled")
        resources: dict[str, Iterable[str]] = {}
        for has in self.pods.values():
            resources |= {resource: {*ids, *resources.get(resource, ())} for resource, ids in has.items()}
        resources |= {**{resource: self.healthy(resource) for resource in [*self.endpoints]}, **self.neighbours}
        devices = [pods_api.ContainerDevices(resource_name=name, device_ids=ids) for name, ids in resources.items()]
        return pods_api.AllocatableResourcesResponse(devices=devices)


@dataclass
class _Life:
    """What a kubelet forgets when it ends: the plugins it is connected to, and each resource's last list."""

    clients: dict[tuple[str, str], Endpoint] = field(default_factory=dict)
    lists: dict[str, dict[str, api.Device]] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)


_OPTIONS = [("grpc.enable_http_proxy", 0)]


@contextmanager
def running_kubelet(directory: Path, *, registry: Path | None = None, before_1_37: bool = False) -> Iterator[Kubelet]:
    kubelet = Kubelet(directory, registry=registry, before_1_37=before_1_37)
    kubelet.start()
    try:
        yield kubelet
    finally:
        kubelet.stop()
