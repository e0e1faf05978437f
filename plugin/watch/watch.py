"""The node as it was last seen, and a way to wait until it differs."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from pci.address import PCIAddress
from pci.viability import Hindrance
from plugin.cards.config import Config
from plugin.cards.holders import Assignment
from plugin.cards.names import PCIIDs
from plugin.cards.nodes import read_nodes
from plugin.fabric.status import Status
from plugin.node.look import Places, look
from plugin.node.snapshot import Snapshot
from plugin.watch.reader import Reader
from program.errors import ProgramError

_log = logging.getLogger(__name__)

_AFTER_THE_NEWS = 0.02  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the plugin learns of its node.

    `sys` and `dev` are the directories that stand for /sys and /dev, `reader` asks the first, `state` has former
    drivers; `pod_resources` is the kubelet's socket, `names` the names of models. `read_config` reads the config anew,
    from the file `config` if there is one. `rescan` is the seconds between two looks at everything, for what no event
    told.
    """

    sys: Path
    dev: Path
    state: Path
    reader: Reader
    pod_resources: Path
    names: PCIIDs
    config: Path | None
    read_config: Callable[[], Awaitable[Config]]
    rescan: float


class Watch:
    """The latest snapshot of the node, for every server; lives in one event loop.

    A look that fails leaves the last snapshot standing, and `sees_node` is False until one succeeds. `next_change` is
    set when the snapshot changes, or when `ending` is set: take it before reading the snapshot, then wait for it.
    """

    def __init__(self, sources: Sources, ending: asyncio.Event, snapshot: Snapshot) -> None:
        """Begin with a snapshot; `begin` takes the first one."""
        self.sources = sources
        self.ending = ending
        self.next_change = asyncio.Event()
        self.sees_node = True
        self.snapshot = snapshot
        self._looking = asyncio.Lock()
        _report_soon(snapshot, None)

    @classmethod
    async def begin(cls, sources: Sources, ending: asyncio.Event) -> Self:
        """Take the first look. ProgramError if the config or the node cannot be read."""
        config = await sources.read_config()
        return cls(sources, ending, await look(_places(sources), sources.names, config, sources.reader.ask))

    @property
    def stopped(self) -> bool:
        return self.ending.is_set()

    async def look_again(self, *, uses: bool = False) -> None:
        """Look at the whole node now; wake all that wait if it differs. ProgramError if it cannot be read. `uses` is as
        in `look`."""
        async with self._looking:
            await self._look(self.snapshot.config, uses=uses)

    async def reconfigure(self, config: Config) -> None:
        """Go by another config from now on. ProgramError if it makes no sense on this node; everything then stays as it
        was."""
        async with self._looking:
            await self._look(config, uses=True)
            self.wake()

    def look_at_nodes(self) -> None:
        """Read /dev alone. ProgramError if it cannot be read."""
        with self._blind_if_it_fails():
            nodes = read_nodes(self.sources.dev)
        self._see(replace(self.snapshot, nodes=nodes))

    def hear(self, assignments: frozenset[Assignment]) -> None:
        """Take the kubelet's list of who has what."""
        self._see(replace(self.snapshot, assignments=assignments, sees_pods=True))

    def hear_nothing(self) -> None:
        """The kubelet does not say who has what: what a pod had, it is thought to have still."""
        self._see(replace(self.snapshot, sees_pods=False))

    def hear_claims(self, claimed: Mapping[str, str], kept: Mapping[str, Hindrance]) -> None:
        """Take which ResourceClaim (`namespace/name`) each device is prepared for, by the device's ID, and why one that
        was bound for a claim could not be given back."""
        self._see(replace(self.snapshot, claimed=claimed, kept=kept))

    def hear_partitions(self, partitions: Status, unlinked: Mapping[str, Hindrance]) -> None:
        """Take what is known of the partitions, and why devices, by ID, have NVLinks that do not work."""
        self._see(replace(self.snapshot, partitions=partitions, unlinked=unlinked))

    def find_fallen(self, fallen: frozenset[PCIAddress]) -> None:
        """Take the functions that fell off the bus."""
        self._see(replace(self.snapshot, fallen=fallen))

    def wake(self) -> None:
        """Wake all that wait for a change."""
        # Who waits holds the old event; who waits from now on waits for the change after this one.
        self.next_change.set()
        self.next_change = asyncio.Event()

    async def _look(self, config: Config, *, uses: bool) -> None:
        with self._blind_if_it_fails():
            seen = await look(
                _places(self.sources),
                self.sources.names,
                config,
                self.sources.reader.ask,
                lambda: self.snapshot,
                uses=uses,
            )
        self.sees_node = True
        self._see(seen)

    @contextmanager
    def _blind_if_it_fails(self) -> Iterator[None]:
        try:
            yield
        except ProgramError:
            self.sees_node = False
            raise

    def _see(self, snapshot: Snapshot) -> None:
        before = self.snapshot
        if snapshot == before:
            return
        self.snapshot = snapshot
        self.wake()
        _report_soon(snapshot, before)


def _places(sources: Sources) -> Places:
    return Places(sys=sources.sys, dev=sources.dev, proc=None, state=sources.state)


def _report_soon(snapshot: Snapshot, before: Snapshot | None) -> None:
    # Whoever waits for the change goes first: writing a line takes longer than telling the kubelet.
    asyncio.get_running_loop().call_later(_AFTER_THE_NEWS, _report, snapshot, before)


def _report(snapshot: Snapshot, before: Snapshot | None) -> None:
    """Log what is new: what is on offer, a line per resource; each device that is not, and why; each entry of sysfs
    that could not be read."""
    known = {device.id: before.reason(device) for device in before.inventory.devices} if before else {}
    resources = {device.id: device.resource for device in before.inventory.devices} if before else {}
    offered: dict[tuple[str, str | None], list[str]] = defaultdict(list)
    for device in snapshot.inventory.devices:
        reason = snapshot.reason(device)
        if device.id in known and known[device.id] == reason and resources[device.id] == device.resource:
            continue
        details = {"device": device.id, "resource": device.resource, "reason": None if reason is None else str(reason)}
        if reason is None:
            offered[device.model, device.resource].append(device.id)
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
    for fault in sorted(set(snapshot.inventory.faults) - set(before.inventory.faults if before else ())):
        _log.warning("sysfs: %s", fault)
