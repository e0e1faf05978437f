from collections.abc import Mapping
from pathlib import Path

from launcher.vm.from_spec import guest_of
from launcher.vm.programs import missing_programs, programs, programs_of
from launcher.vm.spec import VirtualMachineInstance
from tests.launcher.vm.trees import vmi
from tests.launcher.vms import read_manifest
from tests.processes import FIXTURES


def called_by(vmi: VirtualMachineInstance) -> Mapping[str, tuple[str, str]]:
    return programs_of(vmi.spec, guest_of(vmi))


def test_a_vm_needs_qemu_and_what_its_devices_and_volumes_call(tmp_path: Path) -> None:
    assert set(called_by(vmi(tmp_path))) == {"qemu-system-x86_64"}
    assert set(called_by(vmi(tmp_path, devices="      tpm: {}\n"))) == {
        *("qemu-system-x86_64", "swtpm", "swtpm_setup", "passt")
    }
    assert set(called_by(read_manifest(FIXTURES / "vms" / "arm64.yaml"))) >= {"qemu-system-aarch64"}
    assert "qemu-img" in called_by(vmi(tmp_path, below="  volumes: [{name: e, emptyDisk: {capacity: 1Gi}}]\n"))
    seed = "  volumes: [{name: s, cloudInitNoCloud: {userData: x}}]\n"
    assert "bsdtar" in called_by(vmi(tmp_path, below=seed))


def test_one_that_is_in_no_directory_of_the_path_is_named_with_its_package(tmp_path: Path) -> None:
    for name in ("qemu-system-x86_64", "swtpm"):
        (tmp_path / name).touch(mode=0o755)
    wanted = called_by(vmi(tmp_path, devices="      autoattachPodInterface: false\n      tpm: {}\n"))
    missing = missing_programs(wanted, str(tmp_path))
    (found,) = programs(wanted, missing)
    assert str(found) == (
        "swtpm_setup: is not there, and devices.tpm needs it; "
        "install the Debian package swtpm-tools, as gpu-launcher's image does"
    )
