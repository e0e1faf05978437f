"""A second server stands on the watch beside the device plugin: this one prints what is on offer."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from plugin.cards.config import Config
from plugin.cards.names import PCIIDs
from plugin.watch.keeper import keeping
from plugin.watch.listeners import listening
from plugin.watch.podresources import Pods
from plugin.watch.watch import Sources, Watch
from tests.conftest import Machine
from tests.kernel import make_nodes
from tests.plugin.reader import new_reader
from tests.waiting import allowed


async def read_config() -> Config:
    return Config()


async def printing(sources: Sources, ending: asyncio.Event, say: Callable[[str], None]) -> None:
    """The server."""
    with listening(sources, ending) as bells:
        watch = await Watch.begin(sources, ending)
        async with keeping(watch, Pods(watch), bells):
            while not watch.stopped:
                change, snapshot = watch.next_change, watch.snapshot
                for resource in snapshot.inventory.by_resource:
                    healthy = [device_id for device_id, is_healthy, _ in snapshot.listing(resource) if is_healthy]
                    say(f"{resource}: {', '.join(healthy) or 'none'}")
                await change.wait()


def test_a_server_that_prints_what_is_on_offer(machine: Machine, tmp_path: Path, pci_ids: PCIIDs) -> None:
    sys = machine("two-rtx-3090")
    dev = make_nodes(sys, tmp_path / "dev")
    sources = Sources(
        sys=sys,
        dev=dev,
        reader=new_reader(),
        pod_resources=tmp_path / "kubelet.sock",
        config=None,
        names=pci_ids,
        state=tmp_path / "state",
        read_config=read_config,
        rescan=0.1,
    )
    lines: list[str] = []

    async def life() -> None:
        ending = asyncio.Event()

        def say(line: str) -> None:
            lines.append(line)
            (dev / "vfio/11").unlink(missing_ok=True)
            if "0000:01:00.0" not in line:
                ending.set()

        await asyncio.wait_for(printing(sources, ending, say), timeout=allowed(30))

    asyncio.run(life())
    resource = "nvidia.com/GA102_GEFORCE_RTX_3090"
    # A change that came before the node went may print the first line once more.
    assert list(dict.fromkeys(lines)) == [f"{resource}: 0000:01:00.0, 0000:e1:00.0", f"{resource}: 0000:e1:00.0"]
