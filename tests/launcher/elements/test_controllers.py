from pathlib import Path

import pytest

from launcher.elements.controllers import controllers
from launcher.manifest.reading import read_manifest
from tests.launcher.vms import vmi_text

DISK = "      disks: [{{name: root, {target}: {{bus: usb}}}}]\n"
VOLUME = "  volumes: [{name: root, persistentVolumeClaim: {claimName: root}}]\n"


def usb(path: Path, text: str, *, host_devices: bool = False) -> str | None:
    path.write_text(text)
    (model,) = (
        element.get("model")
        for element in controllers(read_manifest(path), usb=host_devices)
        if element.get("type") == "usb"
    )
    return model


@pytest.mark.parametrize("target", ["disk", "cdrom"])
def test_a_disk_on_usb_has_a_controller_of_whichever_kind_it_is(tmp_path: Path, target: str) -> None:
    devices = "    devices:\n"
    text = vmi_text().replace(devices, devices + DISK.format(target=target)) + VOLUME
    assert usb(tmp_path / "vm.yaml", text) == "qemu-xhci"


def test_a_usb_device_of_the_hosts_has_a_controller_and_nothing_has_none(tmp_path: Path) -> None:
    assert usb(tmp_path / "vm.yaml", vmi_text(), host_devices=True) == "qemu-xhci"
    assert usb(tmp_path / "vm.yaml", vmi_text()) == "none"
