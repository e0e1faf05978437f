"""Snapshots of recorded and composed machines."""

import asyncio
from pathlib import Path
from typing import Any

from pci.host import Host
from pci.sysfs.functions import read_host
from plugin.cards.config import Config
from plugin.cards.inventory import take_inventory
from plugin.cards.names import PCIIDs
from plugin.node.look import NodeDirectories, look_at_all
from plugin.node.snapshot import Snapshot


def snapshot_of(host: Host | Path, pci_ids: PCIIDs, config: Config | None = None, **told: Any) -> Snapshot:
    """What follows from a host and what is `told` beside: nodes, assignments, claimed and so on."""
    config, host = config or Config(), read_host(host) if isinstance(host, Path) else host
    return Snapshot(config=config, host=host, inventory=take_inventory(host, config, pci_ids), **told)


def look_at(sys: Path, pci_ids: PCIIDs, config: Config | None = None, **places: Path) -> Snapshot:
    """All that can be seen of a machine that no kubelet runs on; `places` are dev, proc and state."""

    async def ask(read: Any, sys: Path, *arguments: Any, **named: Any) -> Any:
        return read(sys, *arguments, **named)

    async def nobody() -> None:
        return None

    at = NodeDirectories(
        sys=sys, dev=places.get("dev"), proc=places.get("proc"), state=places.get("state", sys.parent / "state")
    )
    looking = look_at_all(at, pci_ids, config or Config(), ask, pods=nobody, claims=lambda: None, fabric=False)
    return asyncio.run(looking)
