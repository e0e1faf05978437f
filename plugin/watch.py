"""The node's inventory as it was last seen, and a way to wait until it differs."""

import asyncio
import logging
from collections.abc import Callable

from plugin.errors import PluginError
from plugin.inventory import Inventory

_log = logging.getLogger(__name__)


class Watch:
    """What the node has on offer, for everybody who serves it; lives in one event loop.

    `look` reads the node. A look that fails leaves the last inventory standing. `next_change` is set when
    the inventory changes or the watch is stopped: take it before reading the inventory, then wait for it.
    """

    def __init__(self, look: Callable[[], Inventory]) -> None:
        self._look = look
        self.next_change = asyncio.Event()
        self.inventory = look()
        self.stopped = False
        _report(self.inventory, before=None)

    def look_again(self) -> Inventory:
        """Read the node now; wake whoever waits if it differs. PluginError where it cannot be read."""
        found = self._look()
        if found != self.inventory:
            _report(found, before=self.inventory)
            self.inventory = found
            self._wake()
        return self.inventory

    async def keep_looking(self, every: float) -> None:
        """Look again every so many seconds, until cancelled."""
        while True:
            await asyncio.sleep(every)
            try:
                self.look_again()
            except PluginError as error:
                _log.error("the node's inventory stays as it was: %s", error)

    def stop(self) -> None:
        """End the watch: whoever waits for a change is woken, and finds it stopped."""
        self.stopped = True
        self.next_change.set()

    def _wake(self) -> None:
        # Whoever waits holds the old event; who waits from now on waits for the change after this one.
        self.next_change.set()
        self.next_change = asyncio.Event()


def _report(inventory: Inventory, *, before: Inventory | None) -> None:
    """Log what is new: each device on offer, each that is not and why, each entry that could not be read."""
    known = set(before.devices) if before else set()
    for device in inventory.devices:
        if device in known:
            continue
        if device.reason is None:
            _log.info("%s (%s) is on offer as %s", device.address, device.model, device.resource)
        else:
            _log.warning("%s (%s) is not on offer: it %s", device.address, device.model, device.reason)
    for address in sorted({device.address for device in known} - {device.address for device in inventory.devices}):
        _log.warning("%s is gone", address)
    for fault in sorted(set(inventory.faults) - set(before.faults if before else ())):
        _log.warning("sysfs: %s", fault)
