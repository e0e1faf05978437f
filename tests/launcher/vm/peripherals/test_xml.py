from pathlib import Path

import pytest
from lxml.etree import _Element as Element

from launcher.vm.from_spec import guest_of
from launcher.vm.peripherals.guest import guest_inputs
from launcher.vm.peripherals.xml import peripherals
from tests.launcher.vms import read_manifest, vmi_text


def made(path: Path, domain: str = "", devices: str = "") -> dict[str, Element]:
    before = "      autoattachPodInterface: false\n"
    path.write_text(vmi_text(domain=domain).replace(before, before + devices))
    return written(path)


def written(path: Path) -> dict[str, Element]:
    vmi = read_manifest(path)
    devices = vmi.spec.domain.devices
    inputs = guest_inputs(devices, vmi.spec.architecture)
    return {str(element.tag): element for element in peripherals(devices, inputs, guest_of(vmi))}


@pytest.mark.parametrize(
    ("domain", "reports"),
    [
        ("", "on"),
        ("    cpu: {cores: 2}\n", "on"),
        ("    cpu: {cores: 2, dedicatedCpuPlacement: true}\n", "off"),
    ],
)
def test_the_balloon_tells_of_free_pages_but_where_time_is_dear(tmp_path: Path, domain: str, reports: str) -> None:
    assert made(tmp_path / "vm.yaml", domain)["memballoon"].get("freePageReporting") == reports


def test_the_balloon_tells_nothing_of_huge_pages(tmp_path: Path) -> None:
    path = tmp_path / "vm.yaml"
    path.write_text(vmi_text().replace("{guest: 1Gi}", "{guest: 1Gi, hugepages: {pageSize: 2Mi}}"))
    assert written(path)["memballoon"].get("freePageReporting") == "off"


def test_under_sev_the_virtio_devices_ask_before_they_read(tmp_path: Path) -> None:
    sev = "    firmware: {bootloader: {efi: {secureBoot: false}}}\n    launchSecurity: {sev: {}}\n"
    elements = made(tmp_path / "vm.yaml", sev, "      rng: {}\n")
    for tag in ("memballoon", "rng"):
        (driver,) = elements[tag].iterfind("driver")
        assert driver.get("iommu") == "on"
