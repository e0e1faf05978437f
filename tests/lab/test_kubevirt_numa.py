"""KubeVirt's own placement of cards by NUMA node (its gate PCINUMAAwareTopology), with and without the hook: on a node
with processors and huge pages to give away. With --thorough."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.lab.kubevirt import cluster, vms
from tests.lab.lab import Lab
from tests.lab.machine import ALONE, CARD, KUBEVIRT_NUMA

pytestmark = pytest.mark.thorough

MACHINE = KUBEVIRT_NUMA

#: A guest on processors and huge pages of its own, in NUMA cells as the host's.
PASSED_THROUGH: Mapping[str, Any] = {
    "domain": {
        "cpu": {"cores": 1, "dedicatedCpuPlacement": True, "numa": {"guestMappingPassthrough": {}}},
        "memory": {"guest": "256Mi", "hugepages": {"pageSize": "2Mi"}},
    }
}


@pytest.fixture(scope="module", autouse=True)
def kubevirt(lab: Lab) -> None:
    """One card is there: KubeVirt refuses one without a NUMA node, which ALONE's is."""
    plugin = lab.start_plugin()
    lab.wait_for_cards(2)
    cluster.start(lab, cluster.permitted(lab, plugin), ["Sidecar", "CPUManager", "PCINUMAAwareTopology"])
    lab.node.sh(f"echo {ALONE}.1 > /sys/bus/pci/devices/{ALONE}.1/driver/unbind")
    lab.wait_for_cards(1)


def test_without_the_hook_the_card_is_below_an_expander_of_its_node(lab: Lab) -> None:
    with vms.guest(lab, vms.manifest("theirs", 1, sidecars=(), more=PASSED_THROUGH)) as guest:
        assert [*vms.cards(guest.console()).values()] == [CARD[0]]
        assert "pcie-expander-bus" in guest.xml()


def test_with_the_hook_it_stays_there_and_gets_its_companion(lab: Lab) -> None:
    with vms.guest(lab, vms.manifest("stays", 1, more=PASSED_THROUGH)) as guest:
        gpu, audio = sorted(vms.cards(guest.console()))
        assert audio == gpu.replace(".0", ".1")
        assert "it stays where KubeVirt has put it" in guest.said()


def test_with_our_topology_it_is_where_ours_puts_it_in_the_cells_of_kubevirt(lab: Lab) -> None:
    numa = {"gpu-launcher.dev/topology": "numa"}
    with vms.guest(lab, vms.manifest("ours", 1, annotations=numa, more=PASSED_THROUGH)) as guest:
        gpu, audio = sorted(vms.cards(guest.console()))
        assert f"in the guest {gpu}, .1" in guest.said()
        assert audio == gpu.replace(".0", ".1")
        assert lab.cluster.get("pod", guest.pod)["status"]["qosClass"] == "Guaranteed"
