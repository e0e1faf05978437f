"""The daemon's pages: Prometheus metrics, its health for the kubelet's probes, and the node for people."""

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, TypeVar

from pci.slices import DRIVER
from plugin.fabric.status import FabricStatus
from plugin.node.snapshot import DeviceState, Snapshot
from plugin.watch.watch import Durations, Watch
from program.http import Answer, Pages, serving
from program.ports import HTTPPort, opened

if TYPE_CHECKING:
    from prometheus_client import Metric

#: Paths as of Kubernetes' own servers: whether this process goes on, and whether the kubelet watches every resource.
#: They differ because a kubelet that is away is no reason to restart the plugin.
LIVE, READY = "/livez", "/readyz"
#: The node's page, for people.
NODE = "/"

K = TypeVar("K", bound=tuple[str, ...])

_NOT_HANDED_OUT = (DeviceState.CORDONED, DeviceState.UNHEALTHY, DeviceState.WITHHELD)
_SCRAPES_APART = 0.5  # seconds; more frequent requests get the same text


@contextlib.asynccontextmanager
async def monitoring(watch: Watch, *, metrics: HTTPPort | None, health: HTTPPort | None) -> AsyncIterator[None]:
    """Serve metrics on one of these ports, health and the node's page on the other; a port that is None is not served.
    Refusal if a port is taken."""
    async with contextlib.AsyncExitStack() as stack:
        if metrics is not None:
            await _serve(stack, "--metrics", metrics, {"/metrics": _metrics(watch)})
        if health is not None:
            await _serve(stack, "--health", health, {**_health(watch), NODE: _node(watch)})
        yield


async def _serve(stack: contextlib.AsyncExitStack, flag: str, port: HTTPPort, pages: Pages) -> None:
    await stack.enter_async_context(serving(stack.enter_context(opened(flag, port)), pages, port.names))


def _health(watch: Watch) -> Pages:
    """Return pages that read nothing: a probe that had to wait for a look at the node would end a busy plugin."""

    def ready() -> Answer:
        if missing := [name for name in _resources(watch) if not watch.counters.watched.get(name, False)]:
            return Answer(503, f"not watched by the kubelet: {', '.join(missing)}\n".encode())
        return Answer(200, b"ok\n")

    return {LIVE: lambda: Answer(200, b"ok\n"), READY: ready}


def _node(watch: Watch) -> Callable[[], Answer]:
    """Return the node's page. It is made once for each snapshot, however many clients ask."""
    latest: tuple[Snapshot, bool, Answer] | None = None

    def page() -> Answer:
        # It imports lxml, which only a visited page needs.
        from plugin.pages.page import node_page

        nonlocal latest
        snapshot, sees_node = watch.snapshot, watch.sees_node
        if latest is None or latest[0] is not snapshot or latest[1] != sees_node:
            whole = node_page(snapshot, sees_node=sees_node)
            headers = (
                ("Content-Security-Policy", whole.policy),
                ("X-Content-Type-Options", "nosniff"),
                ("Cache-Control", "no-store"),
            )
            latest = snapshot, sees_node, Answer(200, whole.html.encode(), "text/html; charset=utf-8", headers)
        return latest[2]

    return page


def _metrics(watch: Watch) -> Callable[[], Answer]:
    """Return the page for Prometheus. It is made at most every half second, however many clients ask."""
    # It imports http.server and ssl, which takes as long as all other imports together: only with --metrics.
    from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

    collector, clock = _Collector(watch), asyncio.get_running_loop().time
    latest: tuple[float, Answer] | None = None

    def page() -> Answer:
        nonlocal latest
        if latest is None or clock() - latest[0] > _SCRAPES_APART:
            latest = clock(), Answer(200, generate_latest(collector), CONTENT_TYPE_PLAIN_0_0_4)
        return latest[1]

    return page


class _Collector:
    """Makes metrics of the snapshot. A device's metric has its reason, so that an alert can name both."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def collect(self) -> "Iterator[Metric]":
        yield from self._devices()
        yield from self._counted()
        yield from self._sight()

    def _devices(self) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        snapshot = self._watch.snapshot
        node = snapshot.node or ""
        by_state = GaugeMetricFamily(
            "gpu_plugin_devices",
            "Devices of the node by state; free only if it is known which pods and ResourceClaims have which.",
            labels=["resource", "state", "node"],
        )
        states = Counter((device.resource or "", snapshot.state(device)) for device in snapshot.inventory.devices)
        for resource in sorted({resource for resource, _ in states}):
            for each in DeviceState:
                by_state.add_metric([resource, each, node], states[resource, each])
        yield by_state
        devices = GaugeMetricFamily(
            "gpu_plugin_device",
            "1 for each device of the node: healthy; cordoned or unhealthy (not handed out); withheld; and why.",
            labels=["device", "resource", "model", "numa_node", "state", "reason", "node"],
        )
        in_use = GaugeMetricFamily(
            "gpu_plugin_device_in_use",
            "1 for each device that a pod or a ResourceClaim has, and the resource it has it as.",
            labels=["device", "resource", "namespace", "pod", "claim", "node"],
        )
        for device in snapshot.inventory.devices:
            reason = snapshot.reason(device)
            state = each if (each := snapshot.state(device)) in _NOT_HANDED_OUT else "healthy"
            numa_node = "" if device.numa_node is None else str(device.numa_node)
            values = [device.id, device.resource or "", device.model, numa_node, state, str(reason or ""), node]
            devices.add_metric(values, 1)
            if (holder := snapshot.holders.get(device.id)) is not None and holder.is_certain:
                namespace, _, pod = holder.assignment.pod.partition("/")
                in_use.add_metric([device.id, holder.assignment.resource, namespace, pod, "", node], 1)
            elif (claim := snapshot.claim(device)) is not None:
                namespace, _, name = claim.partition("/")
                in_use.add_metric([device.id, device.resource or "", namespace, "", name, node], 1)
        yield devices
        yield in_use
        errors = CounterMetricFamily(
            "gpu_plugin_pcie_errors",
            "PCIe errors (AER) of each function of a device on offer, since the kernel found it.",
            labels=["device", "function", "severity"],
        )
        for device in snapshot.inventory.offered:
            for function in device.functions:
                counted = None if snapshot.errors is None else snapshot.errors.now.get(function.address)
                for severity, count in () if counted is None else counted._asdict().items():
                    errors.add_metric([device.id, str(function.address), severity], count)
        yield errors

    def _counted(self) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        counters, resources = self._watch.counters, _resources(self._watch)
        registered = GaugeMetricFamily(
            "gpu_plugin_registered", "1 while the kubelet watches the resource.", labels=["resource"]
        )
        for resource in resources:
            registered.add_metric([resource], counters.watched.get(resource, False))
        yield registered
        count = CounterMetricFamily(
            "gpu_plugin_registrations", "How often the resource was registered.", labels=["resource"]
        )
        streams = CounterMetricFamily(
            "gpu_plugin_streams",
            "How often the kubelet opened the stream of the resource's devices: once, and again after each end.",
            labels=["resource"],
        )
        for metric, counter in ((count, counters.registrations), (streams, counters.streams)):
            # From 0 on: the first increase has to be seen.
            for resource in sorted({*resources, *counter}):
                metric.add_metric([resource], counter[resource])
            yield metric
        allocations = CounterMetricFamily(
            "gpu_plugin_allocations", "Containers that asked for the resource.", labels=["resource", "outcome"]
        )
        for resource, outcome in sorted({*product(resources, ("given", "refused")), *counters.allocations}):
            allocations.add_metric([resource, outcome], counters.allocations[resource, outcome])
        yield allocations
        yield _histogram("gpu_plugin_look_duration_seconds", "Looks at the whole node.", {(): counters.looks})
        if DRIVER in resources:
            binds = {
                key: counters.binds[key] for key in product(("bind", "unbind", "make", "remove"), ("done", "failed"))
            }
            yield _histogram(
                "gpu_plugin_bind_duration_seconds",
                "Cards given to vfio for a claim and given back to their drivers, vGPUs made and taken away.",
                binds,
                ["verb", "outcome"],
            )

    def _sight(self) -> "Iterator[Metric]":
        from importlib.metadata import version

        from prometheus_client.core import GaugeMetricFamily

        snapshot = self._watch.snapshot
        build = GaugeMetricFamily("gpu_plugin_build_info", "1, with the version of gpu-plugin.", labels=["version"])
        build.add_metric([version("gpu-launcher")], 1)
        yield build
        yield GaugeMetricFamily(
            "gpu_plugin_sysfs_faults", "Entries of sysfs that could not be read.", len(snapshot.host.faults)
        )
        yield GaugeMetricFamily(
            "gpu_plugin_sees_node",
            "1 while the node can be looked at; otherwise everything stands as it was seen last.",
            self._watch.sees_node,
        )
        sees_pods = GaugeMetricFamily(
            "gpu_plugin_sees_pods",
            "1 while the kubelet says which pods have which devices: what other plugins gave out is seen.",
            labels=["node"],
        )
        sees_pods.add_metric([snapshot.node or ""], snapshot.sees_pods)
        yield sees_pods
        if snapshot.config.fabric is not None:
            yield from self._fabric(snapshot.partitions or FabricStatus())

    def _fabric(self, sight: FabricStatus) -> "Iterator[Metric]":
        from prometheus_client.core import GaugeMetricFamily

        active = GaugeMetricFamily(
            "gpu_plugin_partition",
            "1 for each partition of GPUs that is active, and who has it; the owner is empty if nobody knows.",
            labels=["partition", "modules", "owner"],
        )
        owners = {each.partition: each.owner for each in sight.owners.activations}
        for partition in () if sight.board is None else sight.board.table.active:
            modules = ",".join(map(str, partition.modules))
            active.add_metric([str(partition.id), modules, owners.get(partition.id, "")], 1)
        yield active
        yield GaugeMetricFamily(
            "gpu_plugin_sees_fabric",
            "1 while the Fabric Manager lists its partitions, and all of ours are active.",
            sight.board is not None and sight.trouble is None,
        )


def _histogram(name: str, what: str, durations: Mapping[K, Durations], labels: list[str] | None = None) -> "Metric":
    from prometheus_client.core import HistogramMetricFamily
    from prometheus_client.utils import floatToGoString

    histogram = HistogramMetricFamily(name, what, labels=labels or [])
    for values, each in durations.items():
        bounds = map(floatToGoString, (*Durations.BOUNDS, math.inf))
        histogram.add_metric(list(values), list(zip(bounds, each.up_to, strict=True)), each.total)
    return histogram


def _resources(watch: Watch) -> list[str]:
    """Return the names that the kubelet should watch: the resources, and the DRA driver if there is one."""
    driver = [DRIVER] if DRIVER in watch.counters.watched else []
    node_devices = [device.resource() for device in watch.snapshot.config.node_devices]
    return [*watch.snapshot.inventory.by_resource, *node_devices, *driver]
