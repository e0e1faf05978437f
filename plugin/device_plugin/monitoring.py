"""What the daemon tells about itself: Prometheus metrics, and its health for the kubelet's probes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pci.slices import DRIVER
from plugin.device_plugin.http import Answer, Pages, serving
from plugin.fabric.status import FabricStatus
from plugin.node.snapshot import State
from plugin.watch.watch import Watch
from program.errors import Refusal

if TYPE_CHECKING:
    from prometheus_client import Metric

#: Paths as of Kubernetes' own servers: whether this process goes on, and whether the kubelet watches every resource.
#: They differ because a kubelet that is away is no reason to restart the plugin.
LIVE, READY = "/livez", "/readyz"

_SCRAPES_APART = 0.5  # seconds; more frequent requests get the same text


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
async def monitoring(watch: Watch, *, metrics: HTTPPort | None, health: HTTPPort | None) -> AsyncIterator[None]:
    """Serve metrics and health on these ports, None for not at all. Refusal if a port is taken."""
    async with contextlib.AsyncExitStack() as stack:
        if metrics is not None:
            await _serve(stack, "--metrics", metrics, {"/metrics": _metrics(watch)})
        if health is not None:
            await _serve(stack, "--health", health, _health(watch))
        yield


async def _serve(stack: contextlib.AsyncExitStack, flag: str, port: HTTPPort, pages: Pages) -> None:
    try:
        await stack.enter_async_context(serving(port.address, port.number, pages))
    except OSError as error:
        raise Refusal(f"{flag} {port}", f"cannot serve there: {error.strerror}", "name another port") from error


def _health(watch: Watch) -> Pages:
    """Return pages that read nothing: a probe that had to wait for a look at the node would end a busy plugin."""

    def ready() -> Answer:
        if missing := [name for name in _resources(watch) if not watch.counters.watched.get(name, False)]:
            return Answer(503, f"not watched by the kubelet: {', '.join(missing)}\n".encode())
        return Answer(200, b"ok\n")

    return {LIVE: lambda: Answer(200, b"ok\n"), READY: ready}


def _metrics(watch: Watch) -> Callable[[], Answer]:
    """Return the page for Prometheus. It is made at most every half second, however many ask."""
    # It imports http.server and ssl, which takes as long as all other imports together: only with --metrics.
    from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

    collector, clock = _Collector(watch), asyncio.get_running_loop().time
    made: tuple[float, Answer] | None = None

    def page() -> Answer:
        nonlocal made
        if made is None or clock() - made[0] > _SCRAPES_APART:
            made = clock(), Answer(200, generate_latest(collector), CONTENT_TYPE_PLAIN_0_0_4)
        return made[1]

    return page


class _Collector:
    """Makes metrics of the snapshot. A device's metric has its reason, so that an alert can say which card and why."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def collect(self) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        snapshot, counters = self._watch.snapshot, self._watch.counters
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
            state = str(each) if (each := snapshot.state(device)) in (State.UNHEALTHY, State.WITHHELD) else "healthy"
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
        for resource in _resources(self._watch):
            registered.add_metric([resource], counters.watched.get(resource, False))
        yield registered
        count = CounterMetricFamily(
            "gpu_plugin_registrations", "How often the resource was registered.", labels=["resource"]
        )
        for resource, times in sorted(counters.registrations.items()):
            count.add_metric([resource], times)
        yield count
        allocations = CounterMetricFamily(
            "gpu_plugin_allocations", "Containers that asked for the resource.", labels=["resource", "outcome"]
        )
        for (resource, outcome), times in sorted(counters.allocations.items()):
            allocations.add_metric([resource, outcome], times)
        yield allocations
        yield GaugeMetricFamily(
            "gpu_plugin_sysfs_faults", "Entries of sysfs that could not be read.", len(snapshot.host.faults)
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
            yield from self._fabric(snapshot.partitions or FabricStatus())

    def _fabric(self, sight: FabricStatus) -> "Iterator[Metric]":
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


def _resources(watch: Watch) -> list[str]:
    """Return the names that the kubelet should watch: the resources, and the DRA driver if there is one."""
    driver = [DRIVER] if DRIVER in watch.counters.watched else []
    node_devices = [device.resource() for device in watch.snapshot.config.node_devices]
    return [*watch.snapshot.inventory.listed, *node_devices, *driver]
