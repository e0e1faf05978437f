"""What the driver writes to the API server when its node changes."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pci.viability import Hindrance
from plugin.cards.names import PCIIDs
from plugin.dra.publisher import Publisher
from tests.bench.machine import build
from tests.plugin.dra.cluster import NODE, Cluster, running_cluster
from tests.plugin.dra.inside import Inside, inside


@pytest.fixture
def cluster(short_dir: Path) -> Iterator[Cluster]:
    machine = build(short_dir, cards=130, others=0)
    with running_cluster(short_dir, machine.sys) as cluster:
        yield cluster


def test_one_card_that_changes_is_one_slice_that_is_written(cluster: Cluster, pci_ids: PCIIDs) -> None:
    async def life(driver: Inside) -> list[int]:
        watch = driver.watch
        publisher = Publisher(watch, driver.api, NODE, lambda: True, lambda: True)
        devices = watch.snapshot.inventory.published
        writes = []
        for tainted in (devices[:0], devices[70:71], devices[:0], devices[60:70]):
            before = cluster.api.writes
            why = Hindrance("was not given back to its driver", "see the log")
            watch.see(replace(watch.snapshot, kept={device.id: why for device in tainted}))
            await publisher.publish()
            writes.append(cluster.api.writes - before)
            published = cluster.published()  # of a pool that is whole
            assert len(published) == 130
            assert sum("taints" in each for each in published.values()) == len(tainted)
        return writes

    assert inside(cluster, pci_ids, life) == [3, 1, 1, 3]
