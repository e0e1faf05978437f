"""VFIO without IOMMUFD, as every Debian has it: cards go by their IOMMU groups alone."""

from pathlib import Path

import pytest

from tests.lab import pods
from tests.lab.lab import Lab
from tests.lab.machine import FAR, LEGACY
from tests.lab.recorded import check_recorded
from tests.lab.restricted import check_restricted

MACHINE = LEGACY


def test_the_kernel_has_groups_and_no_device_nodes(lab: Lab) -> None:
    assert "devices" not in lab.node.sh("ls /dev/vfio").split()
    assert lab.node.sh("ls /dev/iommu || true").strip().endswith("No such file or directory")


def test_the_recorded_machine_is_this_one(lab: Lab, plugin: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    check_recorded(lab, plugin, tmp_path, pytestconfig)


def test_a_vm_starts_with_cards_by_their_groups_nodes_in_a_restricted_namespace(lab: Lab, plugin: str) -> None:
    """By the device plugin, with a disk in a claim and a network; as its user from its first instruction."""
    lab.prepare_runtime(gives_devices=True)
    lab.make_claim("data", "a writable claim")
    lab.wait_for_cards(2)
    links = lab.node.sh("for card in 01 41; do readlink /sys/bus/pci/devices/0000:$card:00.0/iommu_group; done")
    groups = [link.rpartition("/")[2] for link in links.split()]
    # The guest is still booting when it is asked to go, and does not listen.
    with lab.vm("first", 2, grace=1, level="restricted", more=pods.DISK_AND_NETWORK) as log:
        assert f"ua-gpu-gpu2: host {FAR}.0 -> guest 0000:02:00.0" in log
        assert lab.cluster.kubectl("exec", "first", "--", "ls", "/dev/vfio").split() == sorted([*groups, "vfio"])
        check_restricted(lab, "first")
