"""Which functions fell off the bus, among the devices that nobody has."""

import asyncio

from pci.address import PCIAddress
from pci.sysfs.bus import off_the_bus
from plugin.watch.counters import Counters
from plugin.watch.podresources import Pods
from plugin.watch.watch import Watch
from program.errors import Refusal

#: Between the two reads that a function has to answer with ones. Seconds; a reset takes less.
_RESETS_END_WITHIN = 2.0


async def look_for_fallen(watch: Watch, pods: Pods, counters: Counters) -> None:
    """Tell the watch which functions fell off the bus: two reads that agree, each right after the kubelet's word on who
    has what. Where the kubelet does not say, nothing is read."""
    fallen = await _fallen(watch, pods, counters)
    if fallen:
        await asyncio.sleep(_RESETS_END_WITHIN)
        again = await _fallen(watch, pods, counters)
        fallen = None if again is None else fallen & again
    # What was known stands until something else is.
    if fallen is not None:
        watch.find_fallen(fallen)


async def _fallen(watch: Watch, pods: Pods, counters: Counters) -> frozenset[PCIAddress] | None:
    """Return the functions of free devices that read as ones; None if it cannot be told."""
    allocations = counters.allocations.copy()
    # Whoever was given a device meanwhile may not be on the list.
    if not await pods.ask() or counters.allocations != allocations:
        return None
    snapshot = watch.snapshot
    free = (
        device
        for device in snapshot.inventory.offered
        # What its host's driver has may sleep, and a read would wake it.
        if snapshot.user(device) is None and not device.to_bind
    )
    addresses = [function.address for device in free for function in device.functions]
    try:
        return await watch.sources.reader.ask(off_the_bus, watch.sources.sys, addresses)
    except Refusal:
        return None
