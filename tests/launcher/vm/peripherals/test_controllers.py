from pathlib import Path

import pytest
from lxml import etree
from lxml.etree import _Element as Element

from launcher.vm.cards.claims import Claim, Entry, EntryKind
from launcher.vm.cards.guest import GuestCard
from launcher.vm.facts import Facts
from launcher.vm.from_spec import guest_devices, guest_of
from launcher.vm.peripherals.xml import controllers
from pci.resource import USBAddress
from tests.launcher.vms import read_manifest, vmi_text

DISK = "      disks: [{{name: root, {target}}}]\n"
VOLUME = "  volumes: [{name: root, persistentVolumeClaim: {claimName: root}}]\n"
STICK = Entry(kind=EntryKind.HOST_DEVICE, name="stick", wants="example.com/stick")


def with_disk(target: str, domain: str = "") -> str:
    devices = "    devices:\n"
    return vmi_text(domain=domain).replace(devices, devices + DISK.format(target=target)) + VOLUME


def written(path: Path, text: str, *cards: GuestCard) -> dict[str, Element]:
    """By type."""
    path.write_text(text)
    vmi = read_manifest(path)
    guest = guest_of(vmi)
    devices = guest_devices(vmi.spec, vmi.metadata, guest, cards, Facts())
    return {element.get("type", ""): element for element in controllers(guest, devices)}


@pytest.mark.parametrize("target", ["disk", "cdrom"])
def test_a_disk_on_usb_has_a_controller_of_whichever_kind_it_is(tmp_path: Path, target: str) -> None:
    made = written(tmp_path / "vm.yaml", with_disk(f"{target}: {{bus: usb}}"))
    assert made["usb"].get("model") == "qemu-xhci"


def test_a_usb_device_of_the_hosts_has_a_controller_and_nothing_has_none(tmp_path: Path) -> None:
    stick = GuestCard(claim=Claim(entry=STICK, device=USBAddress(1, 4), variable=None), functions=(), missing=None)
    assert written(tmp_path / "vm.yaml", vmi_text(), stick)["usb"].get("model") == "qemu-xhci"
    assert written(tmp_path / "vm.yaml", vmi_text())["usb"].get("model") == "none"


@pytest.mark.parametrize(
    ("technology", "driver"),
    [("sev: {}", b'<driver iommu="on"/>'), ("snp: {}", b'<driver iommu="on"/>'), ("tdx: {}", None)],
)
def test_the_scsi_controller_of_a_guest_that_shares_buffers_goes_by_its_dma_api(
    tmp_path: Path, technology: str, driver: bytes | None
) -> None:
    security = f"    launchSecurity: {{{technology}}}\n    firmware: {{bootloader: {{efi: {{secureBoot: false}}}}}}\n"
    made = written(tmp_path / "vm.yaml", with_disk("disk: {bus: scsi}", security))["scsi"].find("driver")
    assert (None if made is None else etree.tostring(made)) == driver


def test_without_a_scsi_disk_there_is_no_scsi_controller(tmp_path: Path) -> None:
    assert "scsi" not in written(tmp_path / "vm.yaml", with_disk("disk: {bus: virtio}"))
