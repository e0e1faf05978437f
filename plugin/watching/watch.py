"""The node as it was last seen, and a way to wait until it differs."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, TypeAlias

from pci.address import PCIAddress
from pci.host import Host
from pci.sysfs.functions import read_host
from pci.viability import Hindrance
from plugin.cards.config import Config
from plugin.cards.holders import Assignment, holders
from plugin.cards.inventory import Inventory
from plugin.cards.nodes import Nodes, read_nodes
from plugin.cards.snapshot import Snapshot
from plugin.watching.reader import Reader
from program.errors import ProgramError

_log = logging.getLogger(__name__)

#: Takes the inventory of a host by a config, beside the one from before by the same config; None if that is a new one.
Take: TypeAlias = Callable[[Host, Config, Inventory | None], Inventory]

_AFTER_THE_NEWS = 0.02  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the plugin learns of its node.

    `sys` and `dev` are the directories that stand for /sys and /dev, `reader` asks the first; `pod_resources` is the
    kubelet's socket. `take` makes an inventory of what was read, `read_config` reads the config anew, from the file
    `config` if there is one. `rescan` is the seconds between two looks at everything, for what no event told.
    """

    sys: Path
    dev: Path
    reader: Reader
    pod_resources: Path
    config: Path | None
    take: Take
    read_config: Callable[[], Awaitable[Config]]
    rescan: float


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The node at one moment: what was seen of it, the config in force, and the kubelet's list of who has what."""

    snapshot: Snapshot
    config: Config
    assignments: frozenset[Assignment] = frozenset()


class Watch:
    """The latest view of the node, for every server; lives in one event loop.

    A look that fails leaves the last view standing, and `sees_node` is False until one succeeds. `next_change` is set
    when what the kubelet is told changes, or when `ending` is set: take it before reading the view, then wait for it.
    """

    def __init__(self, sources: Sources, ending: asyncio.Event, host: Host, view: View) -> None:
        """Begin with a view that was made of this host; `begin` takes the first look."""
        self.sources = sources
        self.ending = ending
        self.next_change = asyncio.Event()
        self.sees_node = True
        self.view = view
        self._host = host
        self._looking = asyncio.Lock()
        _report_soon(self.view.snapshot, None)

    @classmethod
    async def begin(cls, sources: Sources, ending: asyncio.Event) -> Self:
        """Take the first look. ProgramError if the config or the node cannot be read."""
        config = await sources.read_config()
        host = await sources.reader.ask(read_host, sources.sys)
        snapshot = Snapshot(sources.take(host, config, None), read_nodes(sources.dev))
        return cls(sources, ending, host, View(snapshot=snapshot, config=config))

    @property
    def stopped(self) -> bool:
        return self.ending.is_set()

    async def look_again(self) -> None:
        """Read the whole node now; wake whoever waits if it differs. ProgramError if it cannot be read."""
        async with self._looking:
            nodes = await self._read()
            # Only now: what else is seen may have changed while the kernel was asked.
            before = self.view.snapshot
            inventory = self.sources.take(self._host, self.view.config, before.inventory)
            has = holders(inventory, self.view.assignments)
            self._see(replace(before, inventory=inventory, nodes=nodes, holders=has))

    def look_at_nodes(self) -> None:
        """Read /dev alone. ProgramError if it cannot be read."""
        with self._blind_if_it_fails():
            nodes = read_nodes(self.sources.dev)
        self._see(replace(self.view.snapshot, nodes=nodes))

    def hear(self, assignments: frozenset[Assignment]) -> None:
        """Take the kubelet's list of who has what."""
        before = self.view.snapshot
        self.view = replace(self.view, assignments=assignments)
        self._see(replace(before, holders=holders(before.inventory, assignments), sees_pods=True))

    def hear_nothing(self) -> None:
        """Take it that the kubelet does not say who has what; what a pod had, it is thought to have still."""
        self._see(replace(self.view.snapshot, sees_pods=False))

    def hear_claims(self, claimed: Mapping[str, str]) -> None:
        """Take which ResourceClaim (`namespace/name`) each device is prepared for, by the device's ID."""
        self._see(replace(self.view.snapshot, claimed=claimed))

    def find_fallen(self, fallen: frozenset[PCIAddress]) -> None:
        """Take the functions that fell off the bus."""
        self._see(replace(self.view.snapshot, fallen=fallen))

    def find_unlinked(self, unlinked: Mapping[str, Hindrance]) -> None:
        """Take it that these devices, by ID, have NVLinks that do not work, and why."""
        self._see(replace(self.view.snapshot, unlinked=unlinked))

    async def reconfigure(self, config: Config) -> None:
        """Go by another config from now on. ProgramError if it makes no sense on this node; everything then stays as it
        was."""
        async with self._looking:
            nodes = await self._read()
            inventory = self.sources.take(self._host, config, None)
            has = holders(inventory, self.view.assignments)
            self.view = replace(self.view, config=config)
            self._see(replace(self.view.snapshot, inventory=inventory, nodes=nodes, holders=has))
            self.wake()

    def wake(self) -> None:
        """Wake whoever waits for a change."""
        # Whoever waits holds the old event; who waits from now on waits for the change after this one.
        self.next_change.set()
        self.next_change = asyncio.Event()

    async def _read(self) -> Nodes:
        with self._blind_if_it_fails():
            host = await self.sources.reader.ask(read_host, self.sources.sys)
            nodes = read_nodes(self.sources.dev)
        self._host = host.as_seen_since(self._host)
        self.sees_node = True
        return nodes

    @contextmanager
    def _blind_if_it_fails(self) -> Iterator[None]:
        try:
            yield
        except ProgramError:
            self.sees_node = False
            raise

    def _see(self, snapshot: Snapshot) -> None:
        before = self.view.snapshot
        if snapshot == before:
            return
        self.view = replace(self.view, snapshot=snapshot)
        self.wake()
        _report_soon(snapshot, before)


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
