"""A node without an IOMMU: nothing is offered, and everything says why."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

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
    lab.until("the plugin says so", lambda: "no-IOMMU" in _reasons(lab, plugin)[f"{ALONE}.0"], 150)
    lab.wait_for_log(plugin, "no-IOMMU")
    assert lab.allocatable() == 0


def _reasons(lab: Lab, plugin: str) -> dict[str, str]:
    """By the plugin's metrics: a command in its pod is a Python that an emulated processor starts."""
    metrics = lab.cluster.kubectl("get", "--raw", f"/api/v1/namespaces/default/pods/{plugin}:8080/proxy/metrics")
    (family,) = (each for each in text_string_to_metric_families(metrics) if each.name == "gpu_plugin_device")
    return {one.labels["device"]: one.labels["reason"] for one in family.samples if one.labels["reason"]}
