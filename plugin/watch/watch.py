"""The node as it was last seen, and a way to wait until it differs."""

import asyncio
import logging
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Self

from plugin.cards.config import Config
from plugin.cards.names import PCIIDs
from plugin.cards.nodes import read_nodes
from plugin.node.look import NodeDirectories, look
from plugin.node.snapshot import DeviceState, Snapshot
from plugin.watch.reader import Reader
from program.errors import ProgramError

_log = logging.getLogger(__name__)

_AFTER_THE_NEWS = 0.02  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources(NodeDirectories):
    """The plugin's sources about its node: the directories, the `reader` of sysfs, the kubelet's socket
    `pod_resources`, and pci.ids (`names`).

    `read_config` reads the config anew, from the file `config` if there is one. `rescan` is the seconds between two
    looks at everything, for changes without an event.
    """

    dev: Path
    proc: None = None
    reader: Reader
    pod_resources: Path
    names: PCIIDs
    config: Path | None
    read_config: Callable[[], Awaitable[Config]]
    rescan: float


class Durations:
    """A histogram of durations: their `total` in seconds, and the number up to each of the `BOUNDS`."""

    #: Seconds. A look takes hundredths, a card of a slow driver tens.
    BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)

    def __init__(self) -> None:
        self.total = 0.0
        self._counts = [0] * (len(self.BOUNDS) + 1)

    def add(self, seconds: float) -> None:
        self.total += seconds
        self._counts[bisect_left(self.BOUNDS, seconds)] += 1

    @property
    def up_to(self) -> tuple[int, ...]:
        """The number of durations up to each bound, and of all."""
        return tuple(accumulate(self._counts))


@dataclass(frozen=True, slots=True)
class Counters:
    """The servers' counters, for metrics and health.

    `allocations`: containers that requested a resource, by outcome (`given`, `refused`). `registrations`: how often a
    resource was registered. `streams`: how often the kubelet opened the stream of a resource's devices. `watched`: True
    if the kubelet watches the resource now. `looks`: durations of looks at the whole node. `binds`: durations of binds
    for claims, by verb (`bind`, `unbind`; for vGPUs `make`, `remove`) and outcome (`done`, `failed`).
    """

    allocations: Counter[tuple[str, str]] = field(default_factory=Counter)
    registrations: Counter[str] = field(default_factory=Counter)
    streams: Counter[str] = field(default_factory=Counter)
    watched: dict[str, bool] = field(default_factory=dict)
    looks: Durations = field(default_factory=Durations)
    binds: defaultdict[tuple[str, str], Durations] = field(default_factory=lambda: defaultdict(Durations))


class Watch:
    """The latest snapshot of the node, for every server, and the servers' counters; lives in one event loop.

    A look that fails leaves the last snapshot in place, and `sees_node` is False until a look succeeds. `next_change`
    is set when the snapshot changes, or when `ending` is set: take it before reading the snapshot, then wait for it.
    """

    def __init__(self, sources: Sources, ending: asyncio.Event, snapshot: Snapshot) -> None:
        """Begin with a snapshot; `begin` takes the first one."""
        self.sources = sources
        self.ending = ending
        self.counters = Counters()
        self.next_change = asyncio.Event()
        self.sees_node = True
        self.snapshot = snapshot
        self._looking = asyncio.Lock()
        _report_soon(snapshot, None)

    @classmethod
    async def begin(cls, sources: Sources, ending: asyncio.Event) -> Self:
        """Take the first look. ProgramError if the config or the node cannot be read."""
        config = await sources.read_config()
        return cls(sources, ending, await look(sources, sources.names, config, sources.reader.ask))

    @property
    def stopped(self) -> bool:
        return self.ending.is_set()

    async def look_again(self, config: Config | None = None, *, uses: bool = False) -> None:
        """Look at the whole node now, and put a config in force if one is given. `uses` is as in `look`.

        ProgramError if the node cannot be read or the config makes no sense on it; then the old config stays in force.
        """
        async with self._looking:
            sources, config = self.sources, config or self.snapshot.config
            with self._blind_if_it_fails(), self._timed():
                seen = await look(sources, sources.names, config, sources.reader.ask, lambda: self.snapshot, uses=uses)
            self.sees_node = True
            self.see(seen)

    def look_at_nodes(self) -> None:
        """Read /dev alone. ProgramError if it cannot be read."""
        with self._blind_if_it_fails():
            nodes = read_nodes(self.sources.dev)
        self.see(replace(self.snapshot, nodes=nodes))

    def see(self, snapshot: Snapshot) -> None:
        """Take this snapshot; if it differs from the latest one, wake all that wait."""
        before = self.snapshot
        if snapshot != before:
            self.snapshot = snapshot
            self.wake()
            _report_soon(snapshot, before)

    def wake(self) -> None:
        """Wake all that wait for a change."""
        # A task that waits holds the old event; later ones wait for the change after this one.
        self.next_change.set()
        self.next_change = asyncio.Event()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.counters.looks.add(time.monotonic() - began)

    @contextmanager
    def _blind_if_it_fails(self) -> Iterator[None]:
        try:
            yield
        except ProgramError:
            self.sees_node = False
            raise


def _report_soon(snapshot: Snapshot, before: Snapshot | None) -> None:
    # The tasks that wait for the change run first: writing a line takes longer than telling the kubelet.
    asyncio.get_running_loop().call_later(_AFTER_THE_NEWS, _report, snapshot, before)


def _report(snapshot: Snapshot, before: Snapshot | None) -> None:
    """Log the differences: devices on offer, a line per resource; each device that is not, and why; each entry of sysfs
    that could not be read."""
    known = {each.id: (before.reason(each), each.resource) for each in before.inventory.devices} if before else {}
    offered: dict[tuple[str, str | None], list[str]] = defaultdict(list)
    for device in snapshot.inventory.devices:
        reason = snapshot.reason(device)
        if known.get(device.id) == (reason, device.resource):
            continue
        details = {"device": device.id, "resource": device.resource, "reason": None if reason is None else str(reason)}
        if reason is None:
            offered[device.model, device.resource].append(device.id)
        elif snapshot.state(device) is DeviceState.CORDONED:
            _log.info("%s (%s) is handed out to nobody: it %s", device.id, device.model, reason, extra=details)
        elif device.withheld is None:
            _log.warning("%s (%s) is unhealthy: it %s", device.id, device.model, reason, extra=details)
        else:
            _log.warning("%s (%s) is not on offer: it %s", device.id, device.model, reason, extra=details)
    for (model, resource), devices in offered.items():
        verb = "is" if len(devices) == 1 else "are"
        fields = {"devices": devices, "resource": resource}
        _log.info("%s (%s) %s on offer as %s", ", ".join(devices), model, verb, resource, extra=fields)
    for gone in sorted(known.keys() - snapshot.inventory.by_id.keys()):
        _log.warning("%s is gone", gone, extra={"device": gone})
    for address in sorted(set(snapshot.stray_cordons) - set(before.stray_cordons if before else ())):
        _log.warning("%s is out of service by `kubectl gpuvm cordon`, and no device of this node", address)
    for fault in sorted(map(str, set(snapshot.host.faults) - set(before.host.faults if before else ()))):
        _log.warning("sysfs: %s", fault)
    for what, trouble, former in (
        ("NVML's UUIDs are not all known", snapshot.identities.trouble, before and before.identities.trouble),
        ("what gpu-plugin has changed is not known", snapshot.journal_trouble, before and before.journal_trouble),
        ("which claims have what is not known", snapshot.claims_trouble, before and before.claims_trouble),
    ):
        if trouble is not None and trouble != former:
            _log.warning("%s: %s", what, trouble)
