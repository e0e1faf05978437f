"""What the daemon tells about itself: Prometheus metrics, and the gRPC health service for the kubelet's probes."""

import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import grpc

from plugin.errors import Refusal
from plugin.serving.kubelet import Registrations
from plugin.serving.server import Context
from plugin.serving.watch import Watch

if TYPE_CHECKING:
    from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
    from prometheus_client import Metric

#: The health service that says whether the kubelet watches every resource. The overall one, "", is about this process
#: alone: a kubelet that is away is no reason to restart the plugin.
REGISTERED = "registered"


@contextlib.asynccontextmanager
async def monitoring(
    watch: Watch, registrations: Registrations, *, metrics: int | None, health: int | None
) -> AsyncIterator[None]:
    """Serve both on their TCP ports, None for neither. Refusal where a port is taken."""
    async with contextlib.AsyncExitStack() as stack:
        if metrics is not None:
            _serve_metrics(stack, watch, registrations, metrics)
        if health is not None:
            await _serve_health(stack, watch, registrations, health)
        yield


def _serve_metrics(stack: contextlib.AsyncExitStack, watch: Watch, registrations: Registrations, port: int) -> None:
    # It imports http.server and ssl, as long as everything else together, and only who asks for it pays.
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(watch, registrations))
    try:
        addresses = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 (of the pod: scrapers are elsewhere)
        server, thread = start_http_server(port, addresses, registry=registry)
    except OSError as error:
        raise Refusal(f"--metrics {port}: cannot serve metrics there: {error.strerror}; name another port") from error
    stack.callback(thread.join)
    stack.callback(server.server_close)
    stack.callback(server.shutdown)


class _Collector:
    """The snapshot as metrics. Scrapes come in threads of their own; a snapshot is one value, and never changes.

    A device's metric carries its reason, so that an alert can say which card and why.
    """

    def __init__(self, watch: Watch, registrations: Registrations) -> None:
        self._watch = watch
        self._registrations = registrations

    def collect(self) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        snapshot = self._watch.snapshot
        devices = GaugeMetricFamily(
            "gpu_plugin_device",
            "1 for each device of the node: healthy, unhealthy (listed, not handed out) or withheld, and why.",
            labels=["device", "resource", "model", "numa_node", "state", "reason"],
        )
        in_use = GaugeMetricFamily(
            "gpu_plugin_device_in_use",
            "1 for each device that a pod has, and the resource it has it as.",
            labels=["device", "resource", "namespace", "pod"],
        )
        for device in snapshot.inventory.devices:
            reason = snapshot.reason(device)
            state = "withheld" if device.withheld else "unhealthy" if reason else "healthy"
            numa_node = "" if device.numa_node is None else str(device.numa_node)
            devices.add_metric([device.id, device.resource or "", device.model, numa_node, state, reason or ""], 1)
            if (holder := snapshot.holders.get(device.id)) is not None:
                namespace, _, pod = holder.pod.partition("/")
                in_use.add_metric([device.id, holder.resource, namespace, pod], 1)
        yield devices
        yield in_use
        registered = GaugeMetricFamily(
            "gpu_plugin_registered", "1 while the kubelet watches the resource.", labels=["resource"]
        )
        for resource in _resources(self._watch):
            registered.add_metric([resource], self._registrations.watched.get(resource, False))
        yield registered
        count = CounterMetricFamily(
            "gpu_plugin_registrations", "How often the resource was registered.", labels=["resource"]
        )
        for resource, times in sorted(self._registrations.count.copy().items()):
            count.add_metric([resource], times)
        yield count
        allocations = CounterMetricFamily(
            "gpu_plugin_allocations", "Containers that asked for the resource.", labels=["resource", "outcome"]
        )
        for (resource, outcome), times in sorted(self._watch.allocations.copy().items()):
            allocations.add_metric([resource, outcome], times)
        yield allocations
        yield GaugeMetricFamily(
            "gpu_plugin_sysfs_faults", "Entries of sysfs that could not be read.", len(snapshot.inventory.faults)
        )
        yield GaugeMetricFamily(
            "gpu_plugin_sees_pods",
            "1 while the kubelet says which pods have which devices: what other plugins gave out is seen.",
            snapshot.sees_pods,
        )


async def _serve_health(
    stack: contextlib.AsyncExitStack, watch: Watch, registrations: Registrations, port: int
) -> None:
    from grpc_health.v1 import health_pb2 as api
    from grpc_health.v1 import health_pb2_grpc

    class HealthServicer(health_pb2_grpc.HealthServicer):
        async def Check(self, request: "HealthCheckRequest", context: Context) -> "HealthCheckResponse":
            if request.service not in ("", REGISTERED):
                await context.abort(grpc.StatusCode.NOT_FOUND, f"expected '' or {REGISTERED!r}")
            serving = request.service == "" or _all_watched(watch, registrations)
            status = api.HealthCheckResponse.SERVING if serving else api.HealthCheckResponse.NOT_SERVING
            return api.HealthCheckResponse(status=status)

    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(), server)
    try:
        server.add_insecure_port(f"[::]:{port}")
    except RuntimeError as error:
        raise Refusal(f"--health {port}: cannot serve there; name another port") from error
    await server.start()
    stack.push_async_callback(server.stop, None)


def _all_watched(watch: Watch, registrations: Registrations) -> bool:
    """Whether the kubelet watches whatever is on offer: from the start, and no longer what the config dropped."""
    return all(registrations.watched.get(resource, False) for resource in _resources(watch))


def _resources(watch: Watch) -> list[str]:
    return [*watch.snapshot.inventory.listed, *(device.resource() for device in watch.config.node_devices)]
