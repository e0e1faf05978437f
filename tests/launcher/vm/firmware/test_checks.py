"""EFI images, by descriptors as Debian 12 and 13 have them."""

import json
from pathlib import Path

import pytest

from launcher.vm.firmware.checks import firmware, read_images
from launcher.vm.from_spec import guest_of
from launcher.vm.spec import VirtualMachineInstance
from tests.launcher.vm.trees import vmi, write
from tests.launcher.vms import read_manifest
from tests.processes import FIXTURES

USR, ETC = "usr/share/qemu/firmware", "etc/qemu/firmware"


def descriptor(code: str, *features: str, target: tuple[str, str] = ("x86_64", "pc-q35-*"), **mapping: str) -> str:
    files = {
        "device": "flash",
        "executable": {"filename": f"/fw/{code}", "format": "raw"},
        "nvram-template": {"filename": f"/fw/{code}.vars", "format": "raw"},
    }
    return json.dumps(
        {
            "interface-types": ["uefi"],
            "mapping": {**files, **mapping},
            "targets": [{"architecture": target[0], "machines": [target[1]]}],
            "features": list(features),
        }
    )


SECURE = descriptor("ms.fd", "enrolled-keys", "secure-boot", "requires-smm", "amd-sev")
EMPTY = descriptor("secboot.fd", "secure-boot", "requires-smm", "amd-sev")
PLAIN = descriptor("plain.fd", "amd-sev", "amd-sev-es")
ARM = descriptor("arm.fd", "verbose-static", target=("aarch64", "virt-*"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A container with four images and all of their files."""
    images = {"40-secure": SECURE, "50-empty": EMPTY, "60-plain": PLAIN, "60-arm": ARM}
    codes = ("ms.fd", "secboot.fd", "plain.fd", "arm.fd")
    write(tmp_path, {f"{USR}/{name}.json": text for name, text in images.items()})
    return write(tmp_path, {f"fw/{code}{part}": "" for code in codes for part in ("", ".vars")})


def efi(directory: Path, efi: str) -> VirtualMachineInstance:
    return vmi(directory, domain=f"    firmware: {{bootloader: {{efi: {efi}}}}}\n    features: {{smm: {{}}}}\n")


def said(vm: VirtualMachineInstance, root: Path) -> list[str]:
    return list(map(str, firmware(guest_of(vm), read_images(root))))


@pytest.mark.parametrize("asked", ["{secureBoot: true}", "{secureBoot: false}"])
def test_an_image_that_has_what_is_asked_is_nothing_to_speak_of(root: Path, asked: str) -> None:
    assert said(efi(root, asked), root) == []


def test_bios_is_qemus_own(tmp_path: Path) -> None:
    assert said(vmi(tmp_path), tmp_path) == []


def test_an_arm_machine_has_efi_in_any_case(root: Path) -> None:
    arm = read_manifest(FIXTURES / "vms" / "arm64.yaml")
    assert said(arm, root) == []
    (root / USR / "60-arm.json").unlink()
    (found,) = said(arm, root)
    assert "no image is EFI for aarch64, secure boot off" in found
    assert "install the Debian package qemu-efi-aarch64" in found


def test_secure_boot_is_with_enrolled_keys_as_libvirt_is_told(root: Path) -> None:
    (root / USR / "40-secure.json").unlink()
    (found,) = said(efi(root, "{secureBoot: true}"), root)
    assert found.startswith(
        "firmware: no image is EFI for x86_64, secure boot on: /etc/qemu/firmware and /usr/share/qemu/firmware "
        "describe 50-empty.json, 60-arm.json, 60-plain.json; install the Debian package ovmf"
    )


def test_an_empty_file_in_etc_masks_one_in_usr_as_libvirt_has_it(root: Path) -> None:
    write(root, {f"{ETC}/60-plain.json": ""})
    assert len(said(efi(root, "{secureBoot: false}"), root)) == 1
    write(root, {f"{ETC}/70-own.json": PLAIN})
    assert said(efi(root, "{secureBoot: false}"), root) == []


def test_the_first_that_fits_is_libvirts_and_has_to_have_its_files(root: Path) -> None:
    (root / "fw/plain.fd.vars").unlink()
    (found,) = said(efi(root, "{secureBoot: false}"), root)
    assert "60-plain.json is EFI for x86_64, secure boot off, and names /fw/plain.fd.vars, which is not there" in found


def test_sev_needs_an_image_that_knows_it(root: Path) -> None:
    sev = read_manifest(FIXTURES / "vms" / "sev.yaml")
    assert said(sev, root) == []
    write(root, {f"{USR}/60-plain.json": descriptor("plain.fd", "amd-sev")})
    (found,) = said(sev, root)
    assert "with amd-sev-es" in found


def test_a_guest_that_is_measured_needs_an_image_without_variables(root: Path) -> None:
    snp = read_manifest(FIXTURES / "vms" / "snp.yaml")
    write(root, {f"{USR}/60-plain.json": descriptor("plain.fd", "amd-sev-snp")})
    assert len(said(snp, root)) == 1
    write(root, {f"{USR}/60-plain.json": descriptor("plain.fd", "amd-sev-snp", mode="stateless")})
    assert said(snp, root) == []
    amdsev = descriptor("", "amd-sev-snp", device="memory", filename="/fw/plain.fd")
    write(root, {f"{USR}/60-plain.json": amdsev})
    assert said(snp, root) == []


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"interface-types": []}', '{"interface-types": ["uefi"]}'])
def test_what_is_no_descriptor_is_none(root: Path, text: str) -> None:
    write(root, {f"{USR}/00-broken.json": text})
    assert read_images(root)[0].descriptor == "40-secure.json"


def test_debians_own_descriptors_are_read() -> None:
    if not (Path("/") / USR).is_dir():
        pytest.skip("no EFI images are installed here")
    images = read_images(Path("/"))
    assert not [image for image in images if ("x86_64", "pc-q35-*") in image.targets and image.missing]


def test_secure_boot_under_tdx_is_an_image_with_its_keys_in_it(root: Path) -> None:
    """Ubuntu's ovmf-inteltdx has no other, since it dropped OVMF.inteltdx.fd."""
    tdx, insecure = (read_manifest(FIXTURES / "vms" / f"{name}.yaml") for name in ("tdx-secure-boot", "tdx"))
    features = ("enrolled-keys", "secure-boot", "intel-tdx")
    write(root, {f"{USR}/60-tdx.json": descriptor("", *features, device="memory", filename="/fw/plain.fd")})
    assert said(tdx, root) == []
    (line,) = said(insecure, root)
    assert "no image is EFI for x86_64, secure boot off, with intel-tdx" in line
