"""The node as it was last seen, and a way to wait until it differs."""

import asyncio
import dataclasses
import logging
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from pci.address import PCIAddress
from plugin.cards.config import Config
from plugin.cards.holders import Use, holders
from plugin.cards.inventory import Inventory
from plugin.cards.nodes import read_nodes
from plugin.cards.snapshot import Snapshot
from plugin.errors import PluginError

_log = logging.getLogger(__name__)

#: Takes the inventory by a config, beside the one from before by the same config; None where that is a new one.
Look: TypeAlias = Callable[[Config, Inventory | None], Inventory]

_AFTER_THE_NEWS = 0.02  # seconds


class Watch:
    """What the node has on offer, for everybody who serves it; lives in one event loop.

    A look that fails leaves the last snapshot standing. `next_change` is set when what
    the kubelet is told changes or the watch is stopped: take it before reading the snapshot, then wait for it.
    """

    def __init__(self, look: Look, config: Config, *, sys: Path, dev: Path) -> None:
        self._look = look
        self.config = config
        self.sys = sys
        self.dev = dev
        self.next_change = asyncio.Event()
        self.nodes = read_nodes(dev)
        self._uses: frozenset[Use] = frozenset()
        self.snapshot = Snapshot(look(config, None), self.nodes)
        self.ending = asyncio.Event()
        #: How many containers asked for each resource, by outcome (`given`, `refused`).
        self.allocations: Counter[tuple[str, str]] = Counter()
        _report_soon(self.snapshot, None)

    def look_again(self) -> Snapshot:
        """Read the whole node now; wake whoever waits if it differs. PluginError where it cannot be read."""
        inventory = self._look(self.config, self.snapshot.inventory)
        self.nodes = read_nodes(self.dev)
        return self._see(inventory=inventory, nodes=self.nodes, holders=holders(inventory, self._uses))

    def look_at_nodes(self) -> Snapshot:
        """Read /dev alone."""
        self.nodes = read_nodes(self.dev)
        return self._see(nodes=self.nodes)

    def hear(self, uses: frozenset[Use]) -> Snapshot:
        """Take the kubelet's list of who has what."""
        self._uses = uses
        return self._see(holders=holders(self.snapshot.inventory, uses), sees_pods=True)

    def hear_nothing(self) -> Snapshot:
        """Take it that the kubelet does not say who has what; who had something is thought to have it still."""
        return self._see(sees_pods=False)

    def find_fallen(self, fallen: frozenset[PCIAddress]) -> Snapshot:
        """Take the functions that fell off the bus."""
        return self._see(fallen=fallen)

    def reconfigure(self, config: Config) -> None:
        """Go by another config from now on. PluginError, and everything stays as it was, where it makes no sense on
        this node."""
        inventory = self._look(config, None)
        self.config = config
        self._see(inventory=inventory, holders=holders(inventory, self._uses))
        self.wake()

    @property
    def stopped(self) -> bool:
        return self.ending.is_set()

    def stop(self) -> None:
        """End the watch: whoever waits for a change is woken, and finds it stopped."""
        self.ending.set()
        self.wake()

    def wake(self) -> None:
        """Let whoever waits look."""
        # Whoever waits holds the old event; who waits from now on waits for the change after this one.
        self.next_change.set()
        self.next_change = asyncio.Event()

    def _see(self, **seen: object) -> Snapshot:
        before = self.snapshot
        found = dataclasses.replace(before, _nodes_of={}, **seen)  # type: ignore[arg-type]
        if found == before:
            return before
        self.snapshot = found
        self.wake()
        _report_soon(found, before)
        return found


def look_again_or_say_why(watch: Watch) -> None:
    """Read the whole node; where that fails, the log says why and the last snapshot stands."""
    try:
        watch.look_again()
    except PluginError as error:
        _log.error("the node's inventory stays as it was: %s", error)
    except Exception:
        # A defect of ours must not end what is served.
        _log.exception("the node's inventory stays as it was")


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
        details = {"device": device.id, "resource": device.resource, "reason": reason}
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
