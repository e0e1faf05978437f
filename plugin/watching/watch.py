"""The node as it was last seen, and a way to wait until it differs."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
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
from plugin.cards.nodes import read_nodes
from plugin.cards.snapshot import Snapshot
from plugin.watching.reader import Reader
from program.errors import ProgramError

_log = logging.getLogger(__name__)

#: Takes the inventory of a host by a config, beside the one from before by the same config; None if that is a new one.
Take: TypeAlias = Callable[[Host, Config, Inventory | None], Inventory]

#: Returns of a tree like /sys why devices, of these functions by their IDs, cannot be bound to vfio now; None for each
#: that can.
Refusals: TypeAlias = Callable[[Path, Mapping[str, Sequence[PCIAddress]]], Mapping[str, Hindrance | None]]

_AFTER_THE_NEWS = 0.02  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the plugin learns of its node.

    `sys` and `dev` are the directories that stand for /sys and /dev, `reader` asks the first; `pod_resources` is the
    kubelet's socket. `take` makes an inventory of what was read, `read_config` reads the config anew, from the file
    `config` if there is one; `refusals` says of what is to be bound to vfio when it is claimed whether it could be.
    `rescan` is the seconds between two looks at everything, for what no event told.
    """

    sys: Path
    dev: Path
    reader: Reader
    pod_resources: Path
    config: Path | None
    take: Take
    read_config: Callable[[], Awaitable[Config]]
    refusals: Refusals
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
        inventory = sources.take(host, config, None)
        refusals = await _refusals(sources, inventory, {})
        snapshot = Snapshot(inventory, read_nodes(sources.dev), refusals=refusals)
        return cls(sources, ending, host, View(snapshot=snapshot, config=config))

    @property
    def stopped(self) -> bool:
        return self.ending.is_set()

    async def look_again(self, *, uses: bool = False) -> None:
        """Read the whole node now; wake whoever waits if it differs. ProgramError if it cannot be read.

        With `uses` see anew who uses what is to be bound to vfio when it is claimed, which takes a look at all
        processes of the node; else that is done for what was not to be bound before.
        """
        async with self._looking:
            await self._read_host()
            inventory = self.sources.take(self._host, self.view.config, self.view.snapshot.inventory)
            await self._see_inventory(inventory, {} if uses else self.view.snapshot.refusals)

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

    def hear_claims(self, claimed: Mapping[str, str], kept: Mapping[str, Hindrance]) -> None:
        """Take which ResourceClaim (`namespace/name`) each device is prepared for, by the device's ID, and why one that
        was bound for a claim could not be given back."""
        self._see(replace(self.view.snapshot, claimed=claimed, kept=kept))

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
            await self._read_host()
            inventory = self.sources.take(self._host, config, None)
            await self._see_inventory(inventory, {}, config)
            self.wake()

    def wake(self) -> None:
        """Wake whoever waits for a change."""
        # Whoever waits holds the old event; who waits from now on waits for the change after this one.
        self.next_change.set()
        self.next_change = asyncio.Event()

    async def _read_host(self) -> None:
        with self._blind_if_it_fails():
            host = await self.sources.reader.ask(read_host, self.sources.sys)
        self._host = host.as_seen_since(self._host)

    async def _see_inventory(
        self, inventory: Inventory, known: Mapping[str, Hindrance | None], config: Config | None = None
    ) -> None:
        """See what else there is to the devices of this inventory, made by `config` or else by the one in force."""
        with self._blind_if_it_fails():
            refusals = await _refusals(self.sources, inventory, known)
            nodes = read_nodes(self.sources.dev)
        self.sees_node = True
        has = holders(inventory, self.view.assignments)
        # Only now: what else is seen may have changed while the kernel was asked.
        before = self.view.snapshot
        if config is not None:
            self.view = replace(self.view, config=config)
        self._see(replace(before, inventory=inventory, nodes=nodes, holders=has, refusals=refusals))

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


async def _refusals(
    sources: Sources, inventory: Inventory, known: Mapping[str, Hindrance | None]
) -> Mapping[str, Hindrance | None]:
    """Return why what is to be bound to vfio cannot be now, as far as it is not `known`."""
    to_bind = inventory.to_bind
    unknown = {device_id: to_bind[device_id] for device_id in to_bind.keys() - known.keys()}
    new = await sources.reader.ask(sources.refusals, sources.sys, unknown) if unknown else {}
    every = {**known, **new}
    return {device_id: every[device_id] for device_id in sorted(to_bind)}


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
