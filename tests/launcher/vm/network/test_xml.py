from pathlib import Path
from uuid import UUID

from lxml import etree

from launcher.vm.from_spec import guest_of
from launcher.vm.network.guest import attached
from launcher.vm.network.xml import interface
from launcher.vm.spec import VirtualMachineInstance
from tests.launcher.vms import read_manifest, vmi_text

ONE = UUID("3d32482b-b9d1-57d4-9236-16f33103e002")
OTHER = UUID("3d32482b-b9d1-57d4-9236-16f33103e003")


def vmi(path: Path, interface: str, domain: str = "") -> VirtualMachineInstance:
    text = vmi_text(domain=domain).replace("autoattachPodInterface: false", f"interfaces: [{{{interface}}}]")
    path.write_text(text + "  networks: [{name: default, pod: {}}]\n")
    return read_manifest(path)


def test_an_address_that_nobody_gave_is_the_vms_own_and_the_same_at_every_start(tmp_path: Path) -> None:
    said = vmi(tmp_path / "vm.yaml", "name: default, passt: {}")
    first, again, another = (mac for uuid in (ONE, ONE, OTHER) for mac in addresses(said, uuid))
    assert first == again != another
    assert first.startswith("02:"), "locally administered, and a single card's"


def test_under_sev_a_virtio_card_asks_before_it_reads_and_no_card_has_firmware(tmp_path: Path) -> None:
    sev = "    firmware: {bootloader: {efi: {secureBoot: false}}}\n    launchSecurity: {sev: {}}\n"
    for model, iommu in (("virtio", ["on"]), ("e1000e", [])):
        said = vmi(tmp_path / "vm.yaml", f"name: default, model: {model}, passt: {{}}", sev)
        (element,) = (interface(card, guest_of(said), ONE) for card in attached(said.spec))
        assert [driver.get("iommu") for driver in element.iterfind("driver")] == iommu
        assert etree.tostring(element.findall("rom")[0]) == b'<rom enabled="no"/>'


def addresses(said: VirtualMachineInstance, uuid: UUID) -> list[str]:
    elements = [interface(card, guest_of(said), uuid) for card in attached(said.spec)]
    return [mac.get("address", "") for element in elements for mac in element.iterfind("mac")]
