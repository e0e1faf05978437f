from pathlib import Path

import pytest
from lxml import etree

from launcher.vm.facts import Facts
from launcher.vm.firmware.manifest import EFI
from launcher.vm.guest_pci.addresses import Layout
from launcher.vm.spec import VirtualMachineInstance
from tests.launcher.vms import domain_of, read_manifest, vmi_text


def read(path: Path, *, domain: str = "", spec: str = "") -> VirtualMachineInstance:
    path.write_text(vmi_text(domain=domain) + spec)
    return read_manifest(path)


@pytest.mark.parametrize(
    ("architecture", "bootloader", "chosen"),
    [
        ("amd64", "{}", None),
        ("amd64", "{bios: {}}", None),
        ("amd64", "{efi: {}}", EFI()),
        ("arm64", "{}", EFI(secureBoot=False)),
        ("arm64", "{efi: {secureBoot: false, persistent: true}}", EFI(secureBoot=False, persistent=True)),
    ],
)
def test_an_arm64_machine_boots_with_efi_and_an_amd64_one_where_it_is_said(
    tmp_path: Path, architecture: str, bootloader: str, chosen: EFI | None
) -> None:
    firmware = f"    firmware: {{bootloader: {bootloader}}}\n"
    vmi = read(tmp_path / "vm.yaml", domain=firmware, spec=f"  architecture: {architecture}\n")
    assert vmi.spec.efi == chosen


@pytest.mark.parametrize("uuid", ["", "    firmware: {uuid: 5D307CA9-B3EF-428C-8861-06E72D69F223}\n"])
def test_the_guest_reads_the_domains_uuid_from_smbios(tmp_path: Path, uuid: str) -> None:
    domain = etree.fromstring(domain_of(read(tmp_path / "vm.yaml", domain=uuid), Layout(), Facts()))
    assert domain.findtext("uuid") == domain.findtext("sysinfo/system/entry[@name='uuid']")


def test_an_empty_machine_type_serial_and_chassis_are_none(tmp_path: Path) -> None:
    said = '    machine: {type: ""}\n    firmware: {serial: ""}\n    chassis: {}\n'
    xml = domain_of(read(tmp_path / "vm.yaml", domain=said), Layout(), Facts())
    assert xml == domain_of(read(tmp_path / "vm.yaml"), Layout(), Facts())
