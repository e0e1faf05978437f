"""What the daemon tells about itself: Prometheus metrics, and its health for the kubelet's probes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pci.slices import DRIVER
from plugin.device_plugin.http import Answer, Pages, listener, serving
from plugin.fabric.status import Status
from plugin.node.snapshot import Snapshot, State
from plugin.watch.counters import Counters
from plugin.watch.watch import Watch
from program.errors import Refusal

if TYPE_CHECKING:
    from prometheus_client import Metric

#: Whether this process goes on, and whether the kubelet watches every resource: the paths that Kubernetes' own servers
#: have for that. A kubelet that is away is no reason to restart the plugin.
LIVE, READY = "/livez", "/readyz"

_NOT_HEALTHY = (State.UNHEALTHY, State.WITHHELD)
_SCRAPES_APART = 0.5  # seconds; who asks more often gets the same text


@dataclass(frozen=True, slots=True)
class HTTPPort:
    """Where to listen: an IP address, None for every one, and a TCP port."""

    address: str | None
    number: int

    def __str__(self) -> str:
        if self.address is None:
            return str(self.number)
        return f"[{self.address}]:{self.number}" if ":" in self.address else f"{self.address}:{self.number}"


@contextlib.asynccontextmanager
async def monitoring(
    watch: Watch, counters: Counters, *, metrics: HTTPPort | None, health: HTTPPort | None
) -> AsyncIterator[None]:
    """Serve metrics and health on these ports, None for not at all. Refusal if a port is taken."""
    async with contextlib.AsyncExitStack() as stack:
        if metrics is not None:
            await _serve(stack, "--metrics", metrics, {"/metrics": _Metrics(watch, counters).page})
        if health is not None:
            await _serve(stack, "--health", health, _health(watch, counters))
        yield


async def _serve(stack: contextlib.AsyncExitStack, flag: str, port: HTTPPort, pages: Pages) -> None:
    try:
        listening = listener(port.address, port.number)
    except OSError as error:
        raise Refusal(f"{flag} {port}", f"cannot serve there: {error.strerror}", "name another port") from error
    await stack.enter_async_context(serving(listening, pages))


def _health(watch: Watch, counters: Counters) -> Pages:
    """Return pages that cost nothing: a probe that has to wait for a look at the node would end a busy plugin."""

    def ready() -> Answer:
        if missing := [name for name in _resources(watch.snapshot, counters) if not counters.watched.get(name, False)]:
            return Answer(503, f"not watched by the kubelet: {', '.join(missing)}\n".encode())
        return Answer(200, b"ok\n")

    return {LIVE: lambda: Answer(200, b"ok\n"), READY: ready}


class _Metrics:
    """The page for Prometheus. It is made at most every half second, however many ask."""

    def __init__(self, watch: Watch, counters: Counters) -> None:
        # It imports http.server and ssl, as long as everything else together, and only who asks for it pays.
        from prometheus_client import CollectorRegistry

        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collector(watch, counters))
        self._made: tuple[float, Answer] | None = None

    def page(self) -> Answer:
        from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

        now = asyncio.get_running_loop().time()
        if self._made is None or now - self._made[0] > _SCRAPES_APART:
            self._made = now, Answer(200, generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4)
        return self._made[1]


class _Collector:
    """Makes metrics of the snapshot.

    A device's metric carries its reason, so that an alert can say which card and why.
    """

    def __init__(self, watch: Watch, counters: Counters) -> None:
        self._watch = watch
        self._counters = counters

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
            "1 for each device that a pod or a ResourceClaim has, and the resource it has it as.",
            labels=["device", "resource", "namespace", "pod", "claim"],
        )
        for device in snapshot.inventory.devices:
            reason = snapshot.reason(device)
            state = str(each) if (each := snapshot.state(device)) in _NOT_HEALTHY else "healthy"
            numa_node = "" if device.numa_node is None else str(device.numa_node)
            devices.add_metric([device.id, device.resource or "", device.model, numa_node, state, str(reason or "")], 1)
            if (holder := snapshot.holders.get(device.id)) is not None:
                namespace, _, pod = holder.pod.partition("/")
                in_use.add_metric([device.id, holder.resource, namespace, pod, ""], 1)
            elif (claim := snapshot.claim(device)) is not None:
                namespace, _, name = claim.partition("/")
                in_use.add_metric([device.id, device.resource or "", namespace, "", name], 1)
        yield devices
        yield in_use
        registered = GaugeMetricFamily(
            "gpu_plugin_registered", "1 while the kubelet watches the resource.", labels=["resource"]
        )
        for resource in _resources(snapshot, self._counters):
            registered.add_metric([resource], self._counters.watched.get(resource, False))
        yield registered
        count = CounterMetricFamily(
            "gpu_plugin_registrations", "How often the resource was registered.", labels=["resource"]
        )
        for resource, times in sorted(self._counters.registrations.items()):
            count.add_metric([resource], times)
        yield count
        allocations = CounterMetricFamily(
            "gpu_plugin_allocations", "Containers that asked for the resource.", labels=["resource", "outcome"]
        )
        for (resource, outcome), times in sorted(self._counters.allocations.items()):
            allocations.add_metric([resource, outcome], times)
        yield allocations
        yield GaugeMetricFamily(
            "gpu_plugin_sysfs_faults", "Entries of sysfs that could not be read.", len(snapshot.inventory.faults)
        )
        yield GaugeMetricFamily(
            "gpu_plugin_sees_node",
            "1 while the node can be looked at; otherwise everything stands as it was seen last.",
            self._watch.sees_node,
        )
        yield GaugeMetricFamily(
            "gpu_plugin_sees_pods",
            "1 while the kubelet says which pods have which devices: what other plugins gave out is seen.",
            snapshot.sees_pods,
        )
        if snapshot.config.fabric is not None:
            yield from self._fabric(snapshot.partitions or Status())

    def _fabric(self, sight: Status) -> "Iterator[Metric]":
        from prometheus_client.core import GaugeMetricFamily

        active = GaugeMetricFamily(
            "gpu_plugin_partition",
            "1 for each partition of GPUs that is active, and who has it; the owner is empty if nobody knows.",
            labels=["partition", "modules", "owner"],
        )
        owners = {each.partition: each.owner for each in sight.book.activations}
        for partition in () if sight.board is None else sight.board.table.active:
            modules = ",".join(map(str, partition.modules))
            active.add_metric([str(partition.id), modules, owners.get(partition.id, "")], 1)
        yield active
        yield GaugeMetricFamily(
            "gpu_plugin_sees_fabric",
            "1 while the Fabric Manager lists its partitions, and all of ours are active.",
            sight.board is not None and sight.trouble is None,
        )


def _resources(snapshot: Snapshot, counters: Counters) -> list[str]:
    """Return what the kubelet ought to watch: resources, and the DRA driver where there is one."""
    driver = [DRIVER] if DRIVER in counters.watched else []
    return [*snapshot.inventory.listed, *(device.resource() for device in snapshot.config.node_devices), *driver]
