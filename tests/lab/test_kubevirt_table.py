"""The table of VMs (table.py) by KubeVirt with the hook, and each in a pod of ours beside it. With --thorough."""

from pathlib import Path
from typing import Any

import pytest

from tests.lab import pods, table
from tests.lab.kubevirt import cluster
from tests.lab.lab import Lab
from tests.lab.machine import KUBEVIRT

pytestmark = pytest.mark.thorough

MACHINE = KUBEVIRT

CONFIG: dict[str, Any] = {**pods.CARDS, "offer": [*pods.CARDS["offer"], table.USB]}


@pytest.fixture(scope="module", autouse=True)
def kubevirt(lab: Lab) -> None:
    """KubeVirt, with a gate for what stands in a VM's volumes, and the table's disks."""
    plugin = lab.start_plugin(CONFIG)
    lab.wait_for_cards(2)
    cluster.start(lab, cluster.permitted(lab, plugin), ["Sidecar", "HostDisk"])
    table.prepare(lab)


@pytest.mark.parametrize("file", table.TABLE, ids=lambda file: file.stem)
def test_a_vm_has_its_disks_and_its_cards_at_the_same_addresses_whoever_runs_it(lab: Lab, file: Path) -> None:
    theirs, ours = table.by_kubevirt(lab, file), table.in_a_pod(lab, file)
    assert theirs.disks() == ours.disks() == table.disks(file)
    for started in (theirs, ours):
        assert started.devices() == table.explained(file, started.variables)
    # A VM with one card may have been given another one.
    assert sorted(theirs.devices().values()) == sorted(ours.devices().values())
