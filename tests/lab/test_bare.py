"""A node without an IOMMU: nothing is offered, and everything says why."""

from pathlib import Path

import pytest

from tests.lab.lab import Lab
from tests.lab.machine import ALONE, BARE, FAR, SCREEN, SHARED
from tests.lab.recorded import check_recorded

MACHINE = BARE


def test_without_an_iommu_no_card_is_offered_and_each_says_why(lab: Lab, plugin: str) -> None:
    reasons = _reasons(lab, plugin)
    assert set(reasons) == {SCREEN, *(f"{slot}.0" for slot in (ALONE, *SHARED, FAR))}
    assert all("IOMMU" in reason for address, reason in reasons.items() if address != SCREEN), reasons
    assert lab.allocatable() == 0


def test_the_recorded_machine_is_this_one(lab: Lab, plugin: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    check_recorded(lab, plugin, tmp_path, pytestconfig)


def test_vfio_without_an_iommu_is_not_offered_either(lab: Lab, plugin: str) -> None:
    """The kernel makes groups for it, which protect nobody from what the device writes into memory."""
    lab.node.sh(
        "echo Y > /sys/module/vfio/parameters/enable_unsafe_noiommu_mode\n"
        f"for f in 0 1; do echo {ALONE}.$f > /sys/bus/pci/drivers/vfio-pci/bind; done"
    )
    assert lab.node.sh("cat /sys/kernel/iommu_groups/*/name").split() == ["vfio-noiommu"] * 2
    reason = _reasons(lab, plugin)[f"{ALONE}.0"]
    assert "no-IOMMU" in reason
    lab.wait_for_log(plugin, reason)
    assert lab.allocatable() == 0


def _reasons(lab: Lab, plugin: str) -> dict[str, str]:
    found = lab.inventory(plugin)
    return {address: device["reason"]["wrong"] for address, device in found.items() if not device["healthy"]}
